"""Idle consumers: each polls its fetch session, in which nothing changes, for half a second.

What a consumer costs that waits for records: the broker's CPU at 1,000 of them. A consumer that got
no session asks for all of its partitions every time, as clients do.
"""

from __future__ import annotations

import asyncio
import struct
import time

import uvloop

from benchmarks.frames import FETCH_VERSION, framed
from benchmarks.subjects import cpu_seconds
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

CONSUMERS = 1000
PARTITIONS = 4
_TOPIC = "idle"
_WAIT_MS = 500
_WARM_UP_S = 2.0
_CONNECT_AT_ONCE = 50
#: Size, correlation id, no tags, throttle time; then error code and session id.
_ANSWERED = struct.Struct(">iixihi")
_SESSION = struct.Struct(">ii")


def measure(broker: Broker, *, seconds: float) -> dict[Row, float]:
    """Return the share of a core that `CONSUMERS` idle consumers take."""
    create_topic(broker.bootstrap, _TOPIC, PARTITIONS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        polls, share = runner.run(_drive(broker, seconds))
    # A consumer polls twice a second; fewer would be idle in another sense.
    assert polls > CONSUMERS * seconds, f"{polls} polls in {seconds} s"
    return {
        Row(
            f"{CONSUMERS:,} idle consumers of {PARTITIONS} partitions each", "% of a core", False
        ): (share * 100)
    }


async def _drive(broker: Broker, seconds: float) -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    host, port = broker.bootstrap.rsplit(":", 1)
    failed: asyncio.Future[None] = loop.create_future()
    consumers: list[_Consumer] = []
    for first in range(0, CONSUMERS, _CONNECT_AT_ONCE):
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: _Consumer(failed), host, int(port))
                for _ in range(first, min(first + _CONNECT_AT_ONCE, CONSUMERS))
            )
        )
        consumers += [consumer for _, consumer in made]
    for consumer in consumers:
        consumer.poll()
        # Spread over the time of a poll, as consumers are that started when they liked.
        await asyncio.sleep(_WAIT_MS / 1000 / CONSUMERS)
    await asyncio.wait((failed,), timeout=_WARM_UP_S)
    polls_before = sum(consumer.polls for consumer in consumers)
    cpu_before, began_at = cpu_seconds(broker.pid), time.perf_counter()
    await asyncio.wait((failed,), timeout=seconds)
    share = (cpu_seconds(broker.pid) - cpu_before) / (time.perf_counter() - began_at)
    polls = sum(consumer.polls for consumer in consumers) - polls_before
    if failed.done():
        failed.result()
    for consumer in consumers:
        consumer.close()
    return polls, share


def _request(session_id: int, epoch: int) -> bytes:
    partitions = [
        FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(PARTITIONS)
    ]
    is_full = epoch == 0
    return framed(
        FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic=_TOPIC, partitions=partitions)] if is_full else [],
        ),
        FETCH_VERSION,
    )


class _Consumer(asyncio.Protocol):
    """A connection that fetches again whenever it was answered."""

    def __init__(self, failed: asyncio.Future[None]) -> None:
        self.polls = 0
        self._failed = failed
        self._frame = bytearray(_request(0, 0))
        self._epoch = 0
        self._epoch_at = 0
        self._received = b""
        self._is_closing = False
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The event loop makes it; uvloop's class is no subclass of asyncio's.
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is no subclass

    def poll(self) -> None:
        self._transport.write(bytes(self._frame))

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        if len(data) < 4 + int.from_bytes(data[:4], "big"):
            self._received = data
            return
        self._received = b""
        self.polls += 1
        _, _, _, error_code, session_id = _ANSWERED.unpack_from(data)
        if error_code:
            self._fail(RuntimeError(f"error {error_code}"))
        elif not self._is_closing:
            self._go_on(session_id)
            self.poll()

    def _go_on(self, session_id: int) -> None:
        """Make the next request of the session, if there is one."""
        if session_id == 0:
            return
        if self._epoch == 0:
            self._frame = bytearray(_request(session_id, 1))
            self._epoch_at = self._frame.index(_SESSION.pack(session_id, 1)) + 4
        self._epoch += 1
        self._frame[self._epoch_at : self._epoch_at + 4] = self._epoch.to_bytes(4, "big")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_closing:
            self._fail(ConnectionError(f"the broker closed the connection: {exc}"))

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
