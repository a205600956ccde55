"""`python -m tools.soak_transactions --minutes 10`: transactions while everything is killed.

Starts a broker of its own; `kill -9` every 20 s, clients stopped past their timeouts and killed,
transactional ids shared by two producers. Exit status 0: from the histories of all clients nothing
was lost, doubled, torn, or visible though aborted, and no partition hangs.
"""

from __future__ import annotations

import sys

from compat_tests.brokers import Broker
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report
from compat_tests.soak.run import DISTURBANCES, Soak
from tools import soak_run


def _run(broker: Broker, duration_s: float, report: Report) -> Verdict:
    return Soak(broker, DISTURBANCES, report).run(duration_s)


if __name__ == "__main__":
    shown = "nothing lost, doubled, torn, visible though aborted, open."
    sys.exit(soak_run.main(soak_run.Soak("transactions", 10.0, shown, _run), __doc__))
