"""`make soak`: the crash properties and the exactly-once pipeline, many times in a row, and at last
100 000 random histories of a consumer group; transactions for ten minutes, groups for five,
retention and compaction for ten while everything is killed; 200 runs of Spark's exactly-once sink
(`tools.soak_transactions`, `tools.soak_groups`, `tools.soak_topics`, `tools.soak_sink`), and the
examples in Spark, one of which audits two million records.

A flaw that needs luck shows itself only to those who ask often. Every run is timed;
failures are printed with their output, and the exit status is 1 if there was any. `--times`,
`--minutes` and `--only` shorten it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: The property tests take this many times the examples of an ordinary run.
_EXAMPLES = {"MAGNETAR_SOAK": "5"}
_CRASH_PATHS = ("tests/logstore", "tests/simulation")
#: What the crash property tests, or their files, have in their names.
_CRASH_TESTS = "crash or recovery or live_replay or simulated"


#: So many characters of a failed run's output are shown.
_TOLD_OF_A_FAILURE = 8000


class Outcome(NamedTuple):
    name: str
    took_s: float
    ok: bool
    output: str


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    """Run a command to its end; its children end with it."""
    began_at = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(name, time.monotonic() - began_at, done.returncode == 0, done.stdout)


def crash_properties(seed: int) -> Outcome:
    """The tests on the simulated disk, with new random examples each time."""
    command = [sys.executable, "-m", "pytest", "-q", *_CRASH_PATHS, "-k", _CRASH_TESTS]
    command += [f"--hypothesis-seed={seed}"]
    return run("crash properties", command, {**_EXAMPLES, "MAGNETAR_SEED": str(seed)})


def pipeline() -> Outcome:
    """Word counts, exactly once, while the workers and the broker are killed."""
    return run("pipeline", [sys.executable, "-m", "compat_tests.pipeline.demo"], {})


def transactions(minutes: float) -> Outcome:
    """Writers and groups in transactions, for so long."""
    command = [sys.executable, "-m", "tools.soak_transactions", "--minutes", str(minutes)]
    return run("transactions", command, {})


def groups(minutes: float) -> Outcome:
    """Members of groups that come, go, are killed and stopped, for so long."""
    command = [sys.executable, "-m", "tools.soak_groups", "--minutes", str(minutes)]
    return run("groups", command, {})


def topics(minutes: float) -> Outcome:
    """Retention and compaction beside readers and transactional writers, for so long."""
    command = [sys.executable, "-m", "tools.soak_topics", "--minutes", str(minutes)]
    return run("topics", command, {})


def examples() -> list[Outcome]:
    """The pipelines of spark_examples, each once at its full size, killed and checked."""
    names = ("ledger", "sessionize", "audit", "backfill")
    return [
        _told(1, run(name, [sys.executable, "-m", f"spark_examples.{name}"], {})) for name in names
    ]


def sink(minutes: float) -> Outcome:
    """Spark's exactly-once sink, ten runs for each minute."""
    command = [sys.executable, "-m", "tools.soak_sink", "--minutes", str(minutes)]
    return run("sink", command, {})


def group_histories() -> Outcome:
    """Random histories of a consumer group; an ordinary run has 300."""
    path = "tests/coordinator/groups/test_consumer_histories.py"
    return run(
        "group histories", [sys.executable, "-m", "pytest", "-q", path], {"MAGNETAR_SOAK": "334"}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make soak")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="of transactions and topics; half of groups, double of the sink",
    )
    runs = (
        "crash",
        "pipeline",
        "transactions",
        "histories",
        "groups",
        "topics",
        "sink",
        "examples",
    )
    parser.add_argument("--only", choices=runs)
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for number in range(1, arguments.times + 1):
        if arguments.only in (None, "crash"):
            outcomes.append(_told(number, crash_properties(seed=time.time_ns() % 2**31)))
        if arguments.only in (None, "pipeline"):
            outcomes.append(_told(number, pipeline()))
    if arguments.only in (None, "transactions"):
        outcomes.append(_told(1, transactions(arguments.minutes)))
    if arguments.only in (None, "histories"):
        outcomes.append(_told(1, group_histories()))
    if arguments.only in (None, "groups"):
        outcomes.append(_told(1, groups(arguments.minutes / 2)))
    if arguments.only in (None, "topics"):
        outcomes.append(_told(1, topics(arguments.minutes)))
    if arguments.only in (None, "sink"):
        outcomes.append(_told(1, sink(arguments.minutes * 2)))
    if arguments.only in (None, "examples"):
        outcomes.extend(examples())
    return _conclude(outcomes)


def _told(number: int, outcome: Outcome) -> Outcome:
    word = "ok" if outcome.ok else "FAILED"
    print(f"{number:3d}  {outcome.name:17s} {outcome.took_s:6.1f} s  {word}", flush=True)
    if not outcome.ok:
        print(outcome.output[-_TOLD_OF_A_FAILURE:], flush=True)
    return outcome


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
