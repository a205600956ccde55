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
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
Report = Callable[[str], None]


class Job(Protocol):
    """What a worker's process is told when it starts."""

    @property
    def worker(self) -> str: ...

    def to_json(self) -> str: ...


class Supervised:
    """One worker: whatever ends its process, another is started."""

    #: The module that is the process; it is given the job as its one argument.
    module = "compat_tests.pipeline.worker"
    #: One that has said nothing for so long is stuck in its library: it is killed as well.
    silence_s_max = 7.0

    def __init__(self, job: Job, report: Report) -> None:
        self.job = job
        self.counters: Counter[str] = Counter()
        self._report = report
        self._process: subprocess.Popen[str] | None = None
        self._heard_at = time.monotonic()
        self._stopping = False
        self._listeners: list[threading.Thread] = []

    def start(self) -> None:
        """Start the process, and a thread that listens to it."""
        self._heard_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, self.job.to_json()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listeners.append(listener)
        listener.start()

    def kill(self) -> None:
        """SIGKILL, at whatever it is doing."""
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: it does nothing and notices nothing until it is resumed."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; its silence begins anew."""
        self._heard_at = time.monotonic()
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it for good, and hear all that its processes have said."""
        self._stopping = True
        self.kill()
        for listener in self._listeners:
            listener.join()

    def keep_running(self) -> None:
        """Start another process where this one ended; kill one that hangs."""
        process = self._process
        assert process is not None, "not started"
        if process.poll() is not None:
            self.counters["starts"] += 1
            self.start()
        elif time.monotonic() - self._heard_at > self.silence_s_max:
            self._report(f"{self.job.worker} said nothing for {self.silence_s_max:.0f} s: killed")
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, number)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard_at = time.monotonic()
            self.on_event(json.loads(line))

    def on_event(self, event: dict[str, Any]) -> None:
        name = event["event"]
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
