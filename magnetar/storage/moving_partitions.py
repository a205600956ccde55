"""Partitions on their way from node to node, and the requests that wait meanwhile.

A client that is sent away asks any node where to go, and tries again. After two or three tries it
gives up: librdkafka hands a commit of offsets back to its application. So while a partition is
handed over, requests for it are not sent away before the other nodes know the next leader, which is
ready by then. They wait where they are: a part of a slow answer, for which clients allow 30 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from coordinator.transactions.metadata import TopicPartition
from magnetar.storage.waiters import Waiters


class MovingPartitions:
    """What this node hands over at present, and the shards of coordinators that it loads."""

    def __init__(self) -> None:
        #: How often each is moving: a shard may come back while it is handed over.
        self._moving: Counter[TopicPartition] = Counter()
        #: The waits for any of them: each looks again when one has settled.
        self._waiters = Waiters()

    @property
    def are_any(self) -> bool:
        """Whether a request may have to wait."""
        return bool(self._moving)

    @contextmanager
    def moving(
        self, partitions: Iterable[TopicPartition]
    ) -> Iterator[Callable[[TopicPartition], None]]:
        """Let requests for these wait until the end of the block. Each may be settled before."""
        left = dict.fromkeys(partitions)
        self._moving.update(left.keys())

        def settle(partition: TopicPartition) -> None:
            if partition in left:
                del left[partition]
                self._settle(partition)

        try:
            yield settle
        finally:
            for partition in tuple(left):
                settle(partition)

    def _settle(self, partition: TopicPartition) -> None:
        self._moving[partition] -= 1
        if self._moving[partition]:
            return
        del self._moving[partition]
        self._waiters.wake()

    def hold(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether a request for these has to wait."""
        return not self._moving.keys().isdisjoint(partitions)

    async def settled(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Return when none of these moves, or after `timeout_s`."""
        await self._waiters.until(lambda: not self.hold(partitions), timeout_s)
