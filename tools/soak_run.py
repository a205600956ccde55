"""The frame of a long run: a broker of its own, what is told and when, and the verdict."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compat_tests.brokers import Broker, BrokerFailed, make_broker, running
from compat_tests.pipeline.disturber import Verdict
from compat_tests.pipeline.supervisor import Report

_FAULTS_TOLD = 20
_OUTPUT_TOLD = 3000


class Soak(NamedTuple):
    """A long run: what it is called, what it needs, and what it has shown when it passes."""

    name: str
    minutes: float
    shown: str
    #: Given a started broker, seconds, and where to report.
    run: Callable[[Broker, float, Report], Verdict]
    settings: dict[str, str] | None = None


def main(soak: Soak, documentation: str | None) -> int:
    """Run it as the command line says; return the exit status. A failed one's data is kept."""
    parser = argparse.ArgumentParser(
        description=documentation, prog=f"python -m tools.soak_{soak.name}"
    )
    parser.add_argument("--minutes", type=float, default=soak.minutes)
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    arguments = parser.parse_args()
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:6.1f} s  {line}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix=f"magnetar-soak-{soak.name}-"))
    broker = make_broker(arguments.broker, directory, soak.settings)
    try:
        with running(broker):
            verdict = soak.run(broker, arguments.minutes * 60, report)
    except (BrokerFailed, TimeoutError, OSError) as error:
        verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")
    return _conclude(soak, verdict, directory, broker.output())


def _conclude(soak: Soak, verdict: Verdict, directory: Path, output: str) -> int:
    print(verdict.summary)
    if not verdict.faults:
        shutil.rmtree(directory)
        print(f"{soak.name.upper()} SOAK PASSED: {soak.shown}")
        return 0
    print(f"{soak.name.upper()} SOAK FAILED:")
    for fault in verdict.faults[:_FAULTS_TOLD]:
        print(f"  {fault}")
    last_words = output[-_OUTPUT_TOLD:]
    print(f"the broker's directory is kept: {directory}; its last words:\n{last_words}")
    return 1
