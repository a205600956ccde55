"""`make demo`: count the words of Python's standard library exactly once, while everything is
killed.

Starts a broker of its own in a temporary directory. Exit status 0: the counts are exactly true.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from compat_tests.brokers import BrokerFailed, make_broker, running
from compat_tests.pipeline.run import Plan, Unfinished, run_pipeline
from compat_tests.pipeline.verdict import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make demo")
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    parser.add_argument("--words", type=int, default=None, help="stop the text after so many words")
    arguments = parser.parse_args()
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:5.1f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="magnetar-demo-") as directory:
        broker = make_broker(arguments.broker, Path(directory))
        try:
            with running(broker):
                report(f"{broker.kind} serves {broker.bootstrap}")
                verdict, killed = run_pipeline(broker, Plan(words_max=arguments.words), report)
        except (BrokerFailed, Unfinished) as error:
            report(f"FAILED: {error}\nthe broker's last words:\n{broker.output()[-2000:]}")
            return 1
    report(f"killed on the way: {killed}")
    return _conclude(verdict)


def _conclude(verdict: Verdict) -> int:
    print(
        f"\n{verdict.words:,} words, {verdict.distinct_words:,} different ones,"
        f" in {verdict.inputs:,} inputs; {verdict.aborted_records:,} records of aborted"
        " transactions lie in the log and no read_committed reader saw one"
    )
    if verdict.faults:
        print("\nNOT EXACTLY ONCE:")
        for fault in verdict.faults:
            print(f"  {fault}")
        return 1
    print("\nEXACTLY ONCE: every word has its true count, every input was counted once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
