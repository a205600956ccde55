"""A consumer without a group: it follows some partitions during the whole run."""

from __future__ import annotations

import asyncio
from random import Random

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.connection import Connection
from tests.simulation.observations import Fetched, Observations, Unreadable, records_of
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import fetch, list_offsets

EARLIEST = -2
#: What a reader may be told for a while: the broker starts, or a partition is damaged and says so.
_FOR_A_WHILE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


class Reader:
    """Reads everything of its partitions, in small and large fetches, now waiting and now not."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        partitions: list[TopicPartition],
        seen: Observations,
        random: Random,
        *,
        is_committed: bool,
    ) -> None:
        self.name = name
        self._connection = connection
        self._seen = seen
        self._random = random
        self._is_committed = is_committed
        self.positions = dict.fromkeys(partitions, 0)
        #: What it reads now has been trimmed; it goes on where the log starts.
        self.is_ending = False

    async def run(self) -> None:
        """Read until told to end."""
        while not self.is_ending:
            try:
                await self.poll(self._random.choice((0, 0, 50, 500)))
                await asyncio.sleep(self._random.choice((0, 0, 0.01, 0.1)))
            except Gone:
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    async def read_to_the_end(self) -> None:
        """Read until every partition's stable end, or a batch that is damaged. Raises Gone."""
        while not await self.poll(0, small=False):
            pass

    async def poll(self, max_wait_ms: int, *, small: bool = True) -> bool:
        """Fetch once from all partitions; return whether there was nothing to read."""
        random = self._random
        max_bytes = random.choice((1, 300, 100_000)) if small else 100_000
        topics: dict[str, list[fetch.FetchPartition]] = {}
        for partition, offset in self.positions.items():
            topics.setdefault(partition.topic, []).append(
                fetch.FetchPartition(
                    partition=partition.partition,
                    fetch_offset=offset,
                    partition_max_bytes=max_bytes,
                )
            )
        request = fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=random.choice((0, 1, 1, 2_000)),
            max_bytes=max_bytes,
            isolation_level=int(self._is_committed),
            topics=[fetch.FetchTopic(topic=name, partitions=each) for name, each in topics.items()],
        )
        asked_s = asyncio.get_running_loop().time()
        answer = await self._connection.ask(request, fetch.FetchResponse, 12)
        if answer.error_code:
            self._witness(f"Fetch answered {ErrorCode(answer.error_code).name}")
            return False
        is_at_end = True
        for topic in answer.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                is_at_end &= await self._take(partition, data, asked_s)
        return is_at_end

    async def _take(
        self, partition: TopicPartition, data: fetch.PartitionData, asked_s: float
    ) -> bool:
        """Note what the answer says of one partition; return whether no more of it can be read."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._reset(partition)
            return False
        if data.error_code in _FOR_A_WHILE:
            return False
        if data.error_code:
            self._witness(f"{partition}: Fetch answered {ErrorCode(data.error_code).name}")
            return False
        position = self.positions[partition]
        aborted = [(one.first_offset, one.producer_id) for one in data.aborted_transactions or ()]
        content = data.records or b""
        assert isinstance(content, bytes | bytearray | memoryview)
        try:
            records, next_offset = records_of(
                content, iter(aborted), position, is_committed=self._is_committed
            )
        except Unreadable as unreadable:
            self._witness(f"{partition}: unreadable: {unreadable}")
            return True
        self._seen.fetched.append(
            Fetched(
                self.name,
                self._is_committed,
                partition,
                asked_s,
                asyncio.get_running_loop().time(),
                position,
                next_offset,
                data.high_watermark,
                data.last_stable_offset,
                data.log_start_offset,
                tuple(records),
            )
        )
        self.positions[partition] = next_offset
        end = data.last_stable_offset if self._is_committed else data.high_watermark
        return next_offset >= end

    async def _reset(self, partition: TopicPartition) -> None:
        """Go on where the log starts: what is before it has been deleted."""
        request = list_offsets.ListOffsetsRequest(
            isolation_level=int(self._is_committed),
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=partition.topic,
                    partitions=[
                        list_offsets.ListOffsetsPartition(
                            partition_index=partition.partition, timestamp=EARLIEST
                        )
                    ],
                )
            ],
        )
        answer = await self._connection.ask(request, list_offsets.ListOffsetsResponse, 7)
        found = answer.topics[0].partitions[0]
        if found.error_code in _FOR_A_WHILE:
            return
        if found.error_code or found.offset < self.positions[partition]:
            self._witness(
                f"{partition}: offset {self.positions[partition]} is out of range, and the log"
                f" starts at {found.offset} (error {found.error_code})"
            )
        self.positions[partition] = found.offset

    def _witness(self, sentence: str) -> None:
        self._seen.witnesses.append(f"reader: {self.name}: {sentence}")
