"""One long run: `python -m tools.soak_run transactions --minutes 10`.

Each starts a broker of its own, disturbs it, and exits with 0 if nothing was wrong.

- transactions: writers, copiers and joint transactions, while the broker is killed every 20 s, and
  clients are killed, or stopped for longer than their timeouts. From the histories of all clients
  nothing was lost, doubled, torn, or visible though aborted, and no partition hangs.
- groups: members that come, go, are killed and stopped, while the broker is killed every 30 s. Each
  group read each record at least once, no partition had two owners by the coordinator's records,
  and every group was stable within 10 s of the last change.
- cluster: as transactions, over three nodes without disks, on a PostgreSQL with a synchronous
  standby, and a bucket with `--objects`. Nodes are killed, stopped, restarted and cut off, the
  database restarts and fails over. It prints how long clients waited, by kind of fault.
- nodes: as transactions, over three nodes of which one is killed every 5 s.
- topics: retention and compaction beside writers and readers (`tools.soak_topics`).
- sink: Spark's exactly-once sink, ten runs for each minute, while its tasks, its drivers and the
  broker are killed at the steps of the protocol. After every batch the topic held each record of
  the batches written, once, in order, and nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compat_tests.brokers import Broker, BrokerFailed, make_broker, running
from compat_tests.chaos.cluster_broker import ClusterBroker
from compat_tests.chaos.run import chaos
from compat_tests.churn import plan as churn_plan
from compat_tests.churn.run import DISTURBANCES as CHURN_DISTURBANCES
from compat_tests.churn.run import churn
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.sink_crashes.run import crash_runs
from compat_tests.soak.run import DISTURBANCES as SOAK_DISTURBANCES
from compat_tests.soak.run import NODE_DISTURBANCES
from compat_tests.soak.run import Soak as TransactionSoak
from tools import soak_topics

_FAULTS_SHOWN = 20
_OUTPUT_SHOWN = 3000
_SINK_RUNS_PER_MINUTE = 10


class Soak(NamedTuple):
    """A long run: its usual length, what it shows when it passes, and the broker's settings."""

    minutes: float
    shows: str
    #: Takes a started broker, a duration in seconds, and where to report.
    run: Callable[[Broker, float, Report], Verdict]
    settings: dict[str, str] | None = None
    workers: int | None = None
    is_cluster: bool = False


def _nodes(broker: Broker, duration_s: float, report: Report) -> Verdict:
    return TransactionSoak(broker, NODE_DISTURBANCES, report).run(duration_s)


def _cluster(broker: Broker, duration_s: float, report: Report) -> Verdict:
    assert isinstance(broker, ClusterBroker)
    return chaos(broker, duration_s, report)


def _transactions(broker: Broker, duration_s: float, report: Report) -> Verdict:
    return TransactionSoak(broker, SOAK_DISTURBANCES, report).run(duration_s)


def _groups(broker: Broker, duration_s: float, report: Report) -> Verdict:
    return churn(broker, CHURN_DISTURBANCES, duration_s, report)


def _sink(broker: Broker, duration_s: float, report: Report) -> Verdict:
    first = time.time_ns() % 2**31
    runs = round(duration_s / 60 * _SINK_RUNS_PER_MINUTE)
    return crash_runs(broker, range(first, first + runs), report)


SOAKS = {
    "transactions": Soak(
        10.0, "nothing lost, doubled, torn, open, or visible though aborted.", _transactions
    ),
    "nodes": Soak(
        20.0,
        "nothing lost, doubled, torn, open, or visible though aborted, over nodes.",
        _nodes,
        workers=3,
    ),
    "cluster": Soak(
        20.0,
        "nothing lost, doubled, torn, open, or visible though aborted, over a failing cluster.",
        _cluster,
        is_cluster=True,
    ),
    "groups": Soak(
        5.0,
        "all read, nothing owned twice, every group stable in time.",
        _groups,
        churn_plan.SETTINGS,
    ),
    "topics": Soak(
        10.0,
        "nothing lost that a policy keeps, nothing moved, nothing undone.",
        soak_topics.soak,
        soak_topics.SETTINGS,
    ),
    "sink": Soak(
        20.0,
        "no record lost, doubled, out of order, or visible without the rest of its batch.",
        _sink,
    ),
}


def main() -> int:
    """Run the soak that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tools.soak_run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=tuple(SOAKS))
    parser.add_argument("--minutes", type=float, help="default: " + _usual_minutes())
    parser.add_argument(
        "--objects", action="store_true", help="of cluster: with a bucket, which fails too"
    )
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    arguments = parser.parse_args()
    soak = SOAKS[arguments.name]
    minutes = soak.minutes if arguments.minutes is None else arguments.minutes
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:6.1f} s  {line}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix=f"magnetar-soak-{arguments.name}-"))
    broker: Broker
    if soak.is_cluster:
        # PostgreSQL never runs as root: another user must enter.
        directory.chmod(0o755)
        broker = ClusterBroker(directory, has_objects=arguments.objects)
    else:
        broker = make_broker(arguments.broker, directory, soak.settings, workers=soak.workers)
    try:
        with running(broker):
            verdict = soak.run(broker, minutes * 60, report)
    except (BrokerFailed, TimeoutError, OSError) as error:
        verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")
    print(verdict.summary)
    if not verdict.faults:
        shutil.rmtree(directory)
        print(f"{arguments.name.upper()} SOAK PASSED: {soak.shows}")
        return 0
    _print_failure(arguments.name, verdict, directory, broker.output())
    return 1


def _usual_minutes() -> str:
    return ", ".join(f"{soak.minutes:g} for {name}" for name, soak in SOAKS.items())


def _print_failure(name: str, verdict: Verdict, directory: Path, output: str) -> None:
    print(f"{name.upper()} SOAK FAILED:")
    for fault in verdict.faults[:_FAULTS_SHOWN]:
        print(f"  {fault}")
    print(f"The broker's directory is kept: {directory}. The end of its output:")
    print(output[-_OUTPUT_SHOWN:])


if __name__ == "__main__":
    sys.exit(main())
