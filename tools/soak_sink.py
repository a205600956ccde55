"""`python -m tools.soak_sink --minutes 20`: the exactly-once sink of Spark, while its tasks, its
drivers and the broker are killed at the steps of the protocol.

Starts a broker of its own; ten random runs for each minute, 200 by default, however long they take.
Exit status 0: after every batch the topic held each record of the batches written, once, in order,
and nothing else.
"""

from __future__ import annotations

import sys
import time

from compat_tests.brokers import Broker
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.sink_crashes.run import crash_runs
from tools import soak_run

_RUNS_PER_MINUTE = 10


def _run(broker: Broker, duration_s: float, report: Report) -> Verdict:
    first = time.time_ns() % 2**31
    return crash_runs(
        broker, range(first, first + round(duration_s / 60 * _RUNS_PER_MINUTE)), report
    )


if __name__ == "__main__":
    shown = "no record lost, doubled, out of order, or visible without the rest of its batch."
    sys.exit(soak_run.main(soak_run.Soak("sink", 20.0, shown, _run), __doc__))
