"""One run: clients and checker of `compat_tests.soak`, and a cluster that fails around them."""

from __future__ import annotations

import time
from dataclasses import replace

from compat_tests.chaos.cluster_broker import ClusterBroker
from compat_tests.chaos.faults import Faults
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.soak.run import DISTURBANCES, Soak

#: The cluster has faults of its own; clients are killed and stopped as in other soaks.
_CLIENTS = replace(DISTURBANCES, broker_kill_every_s=1e9)
_PAUSE_MS = 600


def chaos(broker: ClusterBroker, duration_s: float, report: Report) -> Verdict:
    """Return what the checker finds, and how long each kind of fault made clients wait."""
    seed = time.time_ns() % 2**31
    report(f"the faults' seed is {seed}")
    faults = Faults(broker, report, seed)
    soak = Soak(broker, _CLIENTS, report, _PAUSE_MS)
    soak.make_topics()
    with faults.raging(duration_s):
        verdict = soak.run(duration_s)
    size = f"the database has {broker.database.size_mb():.0f} MB"
    return Verdict(
        [*verdict.faults, *faults.faults], "\n".join([verdict.summary, faults.told(), size])
    )
