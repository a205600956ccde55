"""Partitions on their way from node to node, and the requests that wait meanwhile.

A client that is sent away asks any node where to go, and tries again. After two or three tries it
gives up: librdkafka hands a commit of offsets back to its application. So while a partition is
handed over, no request for it is sent away before all nodes know the next leader, which is ready by
then, as a rule. It waits where it is: a part of a slow answer, for which clients allow 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from coordinator.transactions.metadata import TopicPartition


class MovingPartitions:
    """What this node hands over at present, and the shards of coordinators that it loads."""

    def __init__(self) -> None:
        self._moving: set[TopicPartition] = set()
        #: In the order of arrival; a waiter stays until its request goes on.
        self._waiters: dict[TopicPartition, dict[_Waiter, None]] = {}

    @property
    def are_any(self) -> bool:
        """Whether a request may have to wait."""
        return bool(self._moving or self._waiters)

    @contextmanager
    def moving(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Let requests for these wait until the end of the block, or until `settle`."""
        moving = list(partitions)
        self._moving.update(moving)
        try:
            yield
        finally:
            for each in moving:
                self.settle(each)

    def settle(self, partition: TopicPartition) -> None:
        """The partition is here, or where all nodes say that it is: its requests go on."""
        if partition in self._moving:
            self._moving.discard(partition)
            for waiter in self._waiters.get(partition, ()):
                waiter.on_settled()

    def held(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return for which of these a request must wait: for the move, or behind others."""
        return [one for one in partitions if one in self._moving or one in self._waiters]

    async def settled(self, held: Collection[TopicPartition], timeout_s: float) -> None:
        """Return when all of these have moved, or after `timeout_s`.

        Of the requests for a partition none goes on before an earlier one.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), len(self._moving.intersection(held)))
        for partition in held:
            self._waiters.setdefault(partition, {})[waiter] = None
        if not waiter.open_count:
            # Not now: those that wait already would go on later.
            loop.call_soon(waiter.wake)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter.future
        finally:
            for partition in held:
                waiters = self._waiters[partition]
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[partition]


class _Waiter:
    """One request that waits for some partitions."""

    def __init__(self, future: asyncio.Future[None], open_count: int) -> None:
        self.future = future
        #: How many of the partitions are still on their way.
        self.open_count = open_count

    def on_settled(self) -> None:
        self.open_count -= 1
        if self.open_count <= 0:
            self.wake()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
