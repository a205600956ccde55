"""`python -m tools.soak_groups --minutes 5`: groups whose members come, go, are killed and stopped.

Starts a broker of its own; `kill -9` every 30 s. Exit status 0: each record was read at least once
by each group, no partition had two owners at one moment by the coordinator's own records, and every
group was stable within 10 s of the last change.
"""

from __future__ import annotations

import sys

from compat_tests.brokers import Broker
from compat_tests.churn.plan import CONSUMER_GROUP_HEARTBEAT, SETTINGS
from compat_tests.churn.run import DISTURBANCES, STABLE_WITHIN_S, Churn
from compat_tests.pipeline.disturber import Disturbances, Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.raw import Connection
from tools import soak_run
from tools.group_history import read_history


def churn(
    broker: Broker,
    disturbances: Disturbances,
    duration_s: float,
    report: Report,
    stable_within_s: float = STABLE_WITHIN_S,
) -> Verdict:
    """Run one churn on a started broker, and judge it by members and by the coordinator."""
    with Connection(broker.bootstrap) as connection:
        new_protocol = connection.serves(CONSUMER_GROUP_HEARTBEAT)
    one = Churn(
        broker,
        disturbances,
        report,
        duration_s=duration_s,
        new_protocol=new_protocol,
        stable_within_s=stable_within_s,
    )
    verdict = one.run()
    history = read_history(broker.bootstrap, int(broker.settings["offsets.topic.num.partitions"]))
    wrote = f"{history.generations} generations, {history.reconciliations} reconciliations"
    faults = [*verdict.faults, *history.faults]
    if not history.generations or (new_protocol and not history.reconciliations):
        faults.append(f"the coordinator wrote no history: {wrote}")
    return Verdict(faults, f"{verdict.summary}; {wrote}")


def _run(broker: Broker, duration_s: float, report: Report) -> Verdict:
    return churn(broker, DISTURBANCES, duration_s, report)


if __name__ == "__main__":
    shown = "all read, nothing owned twice, every group stable in time."
    sys.exit(soak_run.main(soak_run.Soak("groups", 5.0, shown, _run, SETTINGS), __doc__))
