"""The process of the streaming job: it is started, listened to, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_examples.ledger_query import Order
from spark_examples.running import Failed

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
#: A job that ends more often than this cannot go on.
_STARTS_MAX = 10


class Bookkeeper:
    """The job. Leaving the `with` block ends its processes."""

    def __init__(self, order: Order, report: Callable[[str], None]) -> None:
        self.batches: list[dict[str, Any]] = []
        self._order = order
        self._report = report
        self._errors = Path(order.directory) / "job.log"
        self._starts = 0
        self._ready = threading.Event()

    def __enter__(self) -> Bookkeeper:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def offset(self) -> int:
        """Return the job's progress, in offsets summed over the partitions that it reads."""
        return self.batches[-1]["offset"] if self.batches else 0

    def await_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._ready.wait(0.1):
            self.keep_running()
            if time.monotonic() > deadline:
                raise Failed(f"the job did not start within {_START_TIMEOUT_S:.0f} s")

    def keep_running(self) -> None:
        """Start the job again if it has ended. Raises Failed if that happens too often."""
        if self._process.poll() is None:
            return
        if self._starts > _STARTS_MAX:
            raise Failed(f"the job ends again and again:\n{self._errors.read_text()[-2000:]}")
        self._report("the job has ended; it goes on from its checkpoint")
        self._start()

    def kill(self) -> None:
        """Kill the driver, and Spark with it, with SIGKILL."""
        self._kill()
        self._report("kill -9 the job")
        self._start()

    def stop(self) -> None:
        """Stop the job cleanly. Raises Failed if it ends in another way."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(_STOP_TIMEOUT_S):
            raise Failed(f"the job failed:\n{self._errors.read_text()[-2000:]}")
        self._listener.join()

    def _start(self) -> None:
        self._starts += 1
        self._ready.clear()
        command = [sys.executable, "-m", "spark_examples.ledger_query", self._order.to_json()]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if "ready" in told:
                self._ready.set()
            else:
                self.batches.append({**told, "at": time.monotonic()})
