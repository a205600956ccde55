"""`python -m tools.soak_transactions --minutes 10`: transactions while everything is killed.

Starts a broker of its own; `kill -9` every 20 s, clients stopped past their timeouts and killed,
transactional ids shared by two producers. Exit status 0: from the histories of all clients nothing
was lost, doubled, torn, or visible though aborted, and no partition hangs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from compat_tests.brokers import BrokerFailed, make_broker
from compat_tests.soak.run import Disturbances, Soak, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.soak_transactions")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    arguments = parser.parse_args()
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:6.1f} s  {line}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix="magnetar-soak-"))
    broker = make_broker(arguments.broker, directory)
    try:
        broker.start()
        verdict = Soak(broker, Disturbances(), report).run(arguments.minutes * 60)
    except (BrokerFailed, TimeoutError, OSError) as error:
        verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")
    finally:
        broker.kill()
    return _conclude(verdict, directory, broker.output())


def _conclude(verdict: Verdict, directory: Path, output: str) -> int:
    print(verdict.summary)
    if not verdict.faults:
        shutil.rmtree(directory)
        print(
            "TRANSACTIONS SOAK PASSED: nothing lost, doubled, torn, visible though aborted, open."
        )
        return 0
    print("TRANSACTIONS SOAK FAILED:")
    for fault in verdict.faults:
        print(f"  {fault}")
    print(f"the broker's directory is kept: {directory}; its last words:\n{output[-3000:]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
