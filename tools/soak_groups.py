"""`python -m tools.soak_groups --minutes 5`: groups whose members come, go, are killed and stopped.

Starts a broker of its own; `kill -9` every 30 s. Exit status 0: each record was read at least once
by each group, no partition had two owners at one moment by the coordinator's own records, and every
group was stable within 10 s of the last change.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from compat_tests.brokers import Broker, BrokerFailed, make_broker
from compat_tests.churn.plan import CONSUMER_GROUP_HEARTBEAT, SETTINGS
from compat_tests.churn.run import Churn, Disturbances, Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.raw import Connection
from tools.group_history import read_history


def churn(broker: Broker, disturbances: Disturbances, duration_s: float, report: Report) -> Verdict:
    """Run one churn on a started broker, and judge it by members and by the coordinator."""
    with Connection(broker.bootstrap) as connection:
        new_protocol = connection.serves(CONSUMER_GROUP_HEARTBEAT)
    one = Churn(broker, disturbances, report, duration_s=duration_s, new_protocol=new_protocol)
    verdict = one.run()
    history = read_history(broker.bootstrap, int(broker.settings["offsets.topic.num.partitions"]))
    wrote = f"{history.generations} generations, {history.reconciliations} reconciliations"
    faults = [*verdict.faults, *history.faults]
    if not history.generations or (new_protocol and not history.reconciliations):
        faults.append(f"the coordinator wrote no history: {wrote}")
    return Verdict(faults, f"{verdict.summary}; {wrote}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.soak_groups")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    arguments = parser.parse_args()
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:6.1f} s  {line}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix="magnetar-churn-"))
    broker = make_broker(arguments.broker, directory, SETTINGS)
    try:
        broker.start()
        verdict = churn(broker, Disturbances(), arguments.minutes * 60, report)
    except (BrokerFailed, TimeoutError, OSError) as error:
        verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")
    finally:
        broker.kill()
    return _conclude(verdict, directory, broker.output())


def _conclude(verdict: Verdict, directory: Path, output: str) -> int:
    print(verdict.summary)
    if not verdict.faults:
        shutil.rmtree(directory)
        print("GROUPS SOAK PASSED: all read, nothing owned twice, every group stable in time.")
        return 0
    print("GROUPS SOAK FAILED:")
    for fault in verdict.faults[:20]:
        print(f"  {fault}")
    print(f"the broker's directory is kept: {directory}; its last words:\n{output[-3000:]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
