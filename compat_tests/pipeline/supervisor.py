"""The workers' processes: started, listened to, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compat_tests.pipeline.job import Job

ROOT = Path(__file__).resolve().parents[2]
#: A worker that has said nothing for so long is stuck in its library: it is killed as well.
SILENCE_S_MAX = 7.0
Report = Callable[[str], None]


class Supervised:
    """One worker: whatever ends its process, another is started."""

    def __init__(self, job: Job, report: Report) -> None:
        self.job = job
        self.counters: Counter[str] = Counter()
        self._report = report
        self._process: subprocess.Popen[str] | None = None
        self._heard_at = time.monotonic()
        self._stopping = False

    def start(self) -> None:
        """Start the process, and a thread that listens to it."""
        self._heard_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compat_tests.pipeline.worker", self.job.to_json()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def kill(self) -> None:
        """SIGKILL, at whatever it is doing."""
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """Kill it for good."""
        self._stopping = True
        self.kill()

    def keep_running(self) -> None:
        """Start another process where this one ended; kill one that hangs."""
        process = self._process
        assert process is not None, "not started"
        if process.poll() is not None:
            self.counters["starts"] += 1
            self.start()
        elif time.monotonic() - self._heard_at > SILENCE_S_MAX:
            self._report(f"{self.job.worker} said nothing for {SILENCE_S_MAX:.0f} s: killed")
            self.kill()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard_at = time.monotonic()
            self._on_event(json.loads(line))

    def _on_event(self, event: dict[str, Any]) -> None:
        name = event.pop("event")
        self.counters[name] += 1
        if name == "committed":
            self.counters["records"] += event["records"]
        elif name in ("refused", "ended") and not self._stopping:
            self._report(f"{self.job.worker} {name}: {event['why']}")
            if trace := event.get("trace"):
                self._report(trace)


class Team:
    """All workers of a run; leaving the `with` block ends their processes, whatever happened."""

    def __init__(self, jobs: Iterable[Job], report: Report) -> None:
        self.workers = {job.worker: Supervised(job, report) for job in jobs}

    def __enter__(self) -> Team:
        for worker in self.workers.values():
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.stop()

    def keep_running(self) -> None:
        for worker in self.workers.values():
            worker.keep_running()

    def total(self, counter: str) -> int:
        return sum(worker.counters[counter] for worker in self.workers.values())
