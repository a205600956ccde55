"""`make soak`: everything that needs luck or hours to fail.

- The crash properties on the simulated disk, and the exactly-once pipeline, `--times` each.
- All compat tests against a magnetar of three nodes, against a cluster of three over PostgreSQL,
  and against one with a bucket.
- The long runs of `tools.soak_run`: transactions, also over nodes, a failing cluster,
  groups, topics, Spark's sink.
- Mishaps of a cluster that take long: `compat_tests/cluster_mishaps.py`.
- 100 000 random histories of a consumer group.
- A cluster whose bucket fails, 200 MB in each partition (`tools.soak_bucket`).
- The examples in Spark at full size, one of which audits two million records.

Every run is timed. A failed run prints its output, and the exit status is 1 if any failed.
`--times`, `--minutes` and `--only` shorten it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: The property tests run this many times the examples of an ordinary run.
_EXAMPLES = {"MAGNETAR_SOAK": "5"}
_CRASH_PATHS = ("tests/logstore", "tests/simulation")
#: Words in the names of the crash property tests, or of their files.
_CRASH_TESTS = "crash or recovery or live_replay or simulated"
_HISTORIES = "tests/coordinator/groups/test_consumer_histories.py"
#: An ordinary run has 300 histories.
_HISTORIES_TIMES = {"MAGNETAR_SOAK": "334"}
#: Of `--minutes`, for each long run.
_SHARES = {
    "transactions": 1.0,
    "nodes": 2.0,
    "cluster": 2.0,
    "groups": 0.5,
    "topics": 1.0,
    "sink": 2.0,
}
_SPARK_EXAMPLES = ("ledger", "sessionize", "audit", "backfill")
_OUTPUT_SHOWN = 8000


class Outcome(NamedTuple):
    name: str
    took_s: float
    ok: bool
    output: str


def run(
    name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run `python -m` with these arguments to its end; its children end with it."""
    began_at = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(name, time.monotonic() - began_at, done.returncode == 0, done.stdout)


def crash_properties() -> Outcome:
    """The tests on the simulated disk, with new random examples each time."""
    seed = str(time.time_ns() % 2**31)
    arguments = ["pytest", "-q", *_CRASH_PATHS, "-k", _CRASH_TESTS, f"--hypothesis-seed={seed}"]
    return run("crash properties", arguments, {**_EXAMPLES, "MAGNETAR_SEED": seed})


def pipeline() -> Outcome:
    """Word counts, exactly once, while the workers and the broker are killed, and workers stop."""
    return run("pipeline", ["compat_tests.pipeline.demo", "--pauses"])


def long_run(name: str, minutes: float) -> Outcome:
    """One of the runs of `tools.soak_run`."""
    return run(name, ["tools.soak_run", name, "--minutes", str(minutes)])


def compat_over_nodes(storage: str) -> Outcome:
    """All compat tests against a magnetar of three nodes; `storage`: of a cluster, and which."""
    arguments = ["pytest", "-q", "-n", "3", "--dist", "loadscope", "-p", "no:randomly"]
    return run(
        f"compat over nodes {storage}".rstrip(),
        [*arguments, "compat_tests"],
        {"MAGNETAR_WORKERS": "3", "MAGNETAR_STORAGE": storage},
    )


def group_histories() -> Outcome:
    """Random histories of a consumer group."""
    return run("group histories", ["pytest", "-q", _HISTORIES], _HISTORIES_TIMES)


def bucket() -> Outcome:
    """A cluster whose batches lie in a bucket that fails."""
    return run("bucket", ["tools.soak_bucket", "--megabytes", "200"])


def mishaps() -> Outcome:
    """Clocks, ids, a database that comes and goes: a few minutes."""
    return run("mishaps", ["pytest", "-q", "-p", "no:randomly", "compat_tests/cluster_mishaps.py"])


def spark_example(name: str) -> Outcome:
    """A pipeline of spark_examples at its full size, killed and checked."""
    return run(name, [f"spark_examples.{name}"])


_ONCE: Mapping[str, Callable[[], Outcome]] = {
    "compat": partial(compat_over_nodes, ""),
    "compat-postgresql": partial(compat_over_nodes, "postgresql"),
    "compat-s3": partial(compat_over_nodes, "postgresql+s3"),
    "histories": group_histories,
    "bucket": bucket,
    "mishaps": mishaps,
}


def _planned(
    times: int, minutes: float, only: str | None
) -> Iterator[tuple[int, Callable[[], Outcome]]]:
    """Yield the runs in order, each with its number."""
    for number in range(1, times + 1):
        if only in (None, "crash"):
            yield number, crash_properties
        if only in (None, "pipeline"):
            yield number, pipeline
    for name, perform in _ONCE.items():
        if only in (None, name):
            yield 1, perform
    for name, share in _SHARES.items():
        if only in (None, name):
            yield 1, partial(long_run, name, minutes * share)
    if only in (None, "examples"):
        for name in _SPARK_EXAMPLES:
            yield 1, partial(spark_example, name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make soak",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="of transactions and topics; half of it for groups, twice for nodes, cluster and sink",
    )
    parser.add_argument(
        "--only",
        choices=("crash", "pipeline", *_ONCE, *_SHARES, "examples"),
    )
    arguments = parser.parse_args()
    outcomes = []
    for number, perform in _planned(arguments.times, arguments.minutes, arguments.only):
        outcome = perform()
        _print_outcome(number, outcome)
        outcomes.append(outcome)
    return _conclude(outcomes)


def _print_outcome(number: int, outcome: Outcome) -> None:
    word = "ok" if outcome.ok else "FAILED"
    print(f"{number:3d}  {outcome.name:17s} {outcome.took_s:6.1f} s  {word}", flush=True)
    if not outcome.ok:
        print(outcome.output[-_OUTPUT_SHOWN:], flush=True)


def _conclude(outcomes: Sequence[Outcome]) -> int:
    failed = [outcome for outcome in outcomes if not outcome.ok]
    minutes = sum(outcome.took_s for outcome in outcomes) / 60
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        took = [outcome.took_s for outcome in outcomes if outcome.name == name]
        print(f"{name}: {len(took)} runs, {min(took):.1f} to {max(took):.1f} s each")
    if failed:
        print(f"SOAK FAILED: {len(failed)} of {len(outcomes)} runs, {minutes:.0f} minutes")
        return 1
    print(f"SOAK PASSED: {len(outcomes)} runs without a failure in {minutes:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
