"""A broker in a thread of this process, that keeps nothing, watched while clients ill-treat it."""

from __future__ import annotations

import asyncio
import gc
import io
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

from magnetar import logging
from magnetar.broker import Broker
from magnetar.config.load import Given, load
from tools.fuzz.target import judge
from tools.fuzz.tokens import KEY_SET

#: What clients send and ask for within these limits, in buffers of sockets on both sides too.
_GROWTH_BYTES_MAX = 64 << 20
#: Longer than this, of CPU time, nothing may keep the event loop.
TURN_S_MAX = 0.05
_TIMEOUT_S = 30.0
#: Lines of the log that tell of a bug, whatever a client has sent.
_BUGS = ("handler failed", "unhandled error", "connection failed", "broker failed", "Traceback")
_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "durability": "memory",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="pw of ada";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "connection.failed.authentication.delay.ms": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.min.session.timeout.ms": "1",
    "queued.max.request.bytes": "4000000",
    "socket.request.max.bytes": "1000000",
    # With it clients may push their metrics.
    "metrics.listen": "127.0.0.1:0",
}

R = TypeVar("R")


class WatchedBroker:
    """The broker, its ports by listener, and what it must not have done."""

    def __init__(self, directory: Path, log: io.StringIO) -> None:
        self._log = log
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self._failures: list[BaseException] = []
        self._longest_s = 0.0
        self._longest = ""
        keys = directory / "jwks.json"
        keys.write_bytes(KEY_SET)
        values = {
            **_SETTINGS,
            "log.dirs": str(directory / "data"),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        }
        given = [Given(name, value, "fuzz") for name, value in values.items()]
        self.config = load(given).config

    def start(self) -> None:
        self._thread.start()
        self.broker = self.call(self._start())
        self.ports = {each.name: each.port for each in self.broker.listeners}
        # Nothing waits for a start: there are no clients yet.
        self._longest_s = 0.0
        # 5: the peak is measured anew.
        Path("/proc/self/clear_refs").write_text("5")
        self._resident_bytes = _resident_bytes("VmRSS")

    async def _start(self) -> Broker:
        broker = Broker(self.config, on_failure=self._failures.append)
        await broker.start()
        return broker

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` in the broker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    def ask(self, question: Callable[[Broker], R]) -> R:
        """Return the answer of a function that runs in the broker's event loop."""

        async def asked() -> R:
            return question(self.broker)

        return self.call(asked())

    def stop(self) -> None:
        try:
            self.call(self.broker.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def watched(self, run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> None:
        """Run one turn of the event loop, and note the longest one."""
        callback: object = handle._callback  # type: ignore[attr-defined]  # forgotten once cancelled
        began_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began_s
        if took_s > self._longest_s and threading.current_thread() is self._thread:
            self._longest_s, self._longest = took_s, _named(callback)

    def judge(self) -> None:
        """Raise Fault for what the broker has done and must never do."""
        grown = _resident_bytes("VmHWM") - self._resident_bytes
        judge(grown <= _GROWTH_BYTES_MAX, f"requests take memory within limits, not {grown} bytes")
        log = self._log.getvalue()
        bug = next((line for line in log.splitlines() for word in _BUGS if word in line), None)
        judge(bug is None, f"nothing that a client sends is a bug: {bug}")
        judge(not self._failures, f"nothing that a client sends ends the broker: {self._failures}")
        judge(
            self._longest_s <= TURN_S_MAX,
            f"a turn of the event loop is short, not {self._longest_s:.3f} s: {self._longest}",
        )

    def judge_accounts(self) -> None:
        """Raise Fault where connections that are gone still hold memory."""
        ends_s = time.monotonic() + _TIMEOUT_S
        while any(held := self.ask(_accounts)) and time.monotonic() < ends_s:
            time.sleep(0.001)
        judge(not any(held), f"accounts of clients that are gone are empty, not {held}")


def _resident_bytes(name: str) -> int:
    """Return the memory that this process holds (VmRSS), or has held at most (VmHWM)."""
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) * 1024


def _named(callback: object) -> str:
    """Return what a turn did: of a task, its coroutine."""
    owner = getattr(callback, "__self__", None)
    return f"{callback!r} {owner!r}"


def _accounts(broker: Broker) -> tuple[int, ...]:
    memory = broker.server.memory
    return (
        memory.in_flight_bytes,
        memory.partial_bytes,
        memory.waiting_bytes,
        memory.undecoded_bytes,
        broker.response_memory.held_bytes,
    )


@contextmanager
def served() -> Iterator[WatchedBroker]:
    """Yield a running broker; it is stopped at the end."""
    log = io.StringIO()
    logging.configure("warning", "json", log)
    logging.prepare()
    # What is imported is no garbage: to look through it takes longer than a turn may.
    gc.freeze()
    with TemporaryDirectory(prefix="magnetar-fuzz-") as directory:
        server = WatchedBroker(Path(directory), log)
        run = asyncio.Handle._run  # where each turn passes
        with patch.object(asyncio.Handle, "_run", lambda handle: server.watched(run, handle)):
            server.start()
            try:
                yield server
            finally:
                server.stop()
                logging.configure()
                gc.unfreeze()
