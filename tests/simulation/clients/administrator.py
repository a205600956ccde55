"""An administrator: deletes records, and makes, grows, fills, deletes and makes again a topic."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.connection import Connection
from tests.simulation.observations import Observations, Trimmed, Unreadable, records_of
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    fetch,
    metadata,
    produce,
)
from wire.records import SimpleRecord, build_batch


class Trimmer:
    """Deletes the records of one partition, some at a time."""

    def __init__(
        self,
        connection: Connection,
        partition: TopicPartition,
        seen: Observations,
        random: Random,
    ) -> None:
        self.is_ending = False
        self._connection = connection
        self._partition = partition
        self._seen = seen
        self._random = random
        self._start = 0

    async def run(self) -> None:
        """Trim until told to end."""
        while not self.is_ending:
            await asyncio.sleep(self._random.choice((0.1, 0.3, 1.0)))
            try:
                await self._trim(self._start + self._random.randint(1, 20))
            except Gone:
                continue

    async def _trim(self, before_offset: int) -> None:
        topic, index = self._partition
        request = delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        delete_records.DeleteRecordsPartition(
                            partition_index=index, offset=before_offset
                        )
                    ],
                )
            ],
            timeout_ms=30_000,
        )
        never = float("inf")
        asked = len(self._seen.trimmed)
        self._seen.trimmed.append(Trimmed(self._partition, before_offset, -1, never))
        answer = await self._connection.ask(request, delete_records.DeleteRecordsResponse, 2)
        told = answer.topics[0].partitions[0]
        if told.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start = max(0, self._start - 10)
            return
        if told.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            return
        if told.error_code:
            self._seen.witnesses.append(
                f"refused: DeleteRecords answered {ErrorCode(told.error_code).name}"
            )
            return
        self._start = told.low_watermark
        now_s = asyncio.get_running_loop().time()
        self._seen.trimmed[asked] = Trimmed(
            self._partition, before_offset, told.low_watermark, now_s
        )


class TopicMaker:
    """Makes a topic, writes to it, deletes it, and makes another of the same name."""

    def __init__(
        self, name: str, connection: Connection, seen: Observations, random: Random
    ) -> None:
        self.is_ending = False
        self._name = name
        self._connection = connection
        self._seen = seen
        self._random = random
        #: The number of the topic, of all that had the name.
        self._number = 0
        self._partitions = 1
        self._deleted: set[UUID] = set()
        #: What was acknowledged of the topic's first partition.
        self._values: list[str] = []

    async def run(self) -> None:
        """Make and delete topics until told to end."""
        while not self.is_ending:
            self._number += 1
            self._values = []
            self._partitions = 1
            await self._until_told(self._create)
            for _ in range(self._random.randint(0, 3)):
                await self._until_told(self._write)
                await self._until_told(self._look)
                if self._random.random() < 0.3:
                    await self._until_told(self._grow)
            await self._until_told(self._look)
            await self._until_told(self._delete)

    async def _until_told(self, step: object) -> None:
        assert callable(step)
        while True:
            try:
                await step()
                return
            except Gone:
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    async def _create(self) -> None:
        topic = create_topics.CreatableTopic(
            name=self._name, num_partitions=1, replication_factor=1
        )
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        answer = await self._connection.ask(request, create_topics.CreateTopicsResponse, 7)
        code = answer.topics[0].error_code
        # A request whose answer was lost may have made it.
        self._check(code, "CreateTopics", ErrorCode.TOPIC_ALREADY_EXISTS)
        if code == ErrorCode.NONE and answer.topics[0].topic_id in self._deleted:
            self._witness("a topic has the id of one that was deleted")

    async def _delete(self) -> None:
        known = await self._describe()
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=self._name)], timeout_ms=30_000
        )
        answer = await self._connection.ask(request, delete_topics.DeleteTopicsResponse, 6)
        code = answer.responses[0].error_code
        self._check(code, "DeleteTopics", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known is not None:
            self._deleted.add(known.topic_id)

    async def _describe(self) -> metadata.MetadataResponseTopic | None:
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=self._name)],
            allow_auto_topic_creation=False,
        )
        answer = await self._connection.ask(request, metadata.MetadataResponse, 12)
        (topic,) = answer.topics
        return None if topic.error_code else topic

    async def _grow(self) -> None:
        wanted = self._partitions + 1
        topic = create_partitions.CreatePartitionsTopic(
            name=self._name, count=wanted, assignments=None
        )
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)
        answer = await self._connection.ask(request, create_partitions.CreatePartitionsResponse, 3)
        self._check(answer.results[0].error_code, "CreatePartitions", ErrorCode.INVALID_PARTITIONS)
        self._partitions = wanted

    async def _write(self) -> None:
        value = f"{self._name}.{self._number}/{len(self._values)}"
        batch = build_batch([SimpleRecord(b"k", value.encode(), 1_700_000_000_000)])
        data = produce.PartitionProduceData(index=0, records=batch)
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[produce.TopicProduceData(name=self._name, partition_data=[data])],
        )
        answer = await self._connection.ask(request, produce.ProduceResponse, 9)
        self._check(answer.responses[0].partition_responses[0].error_code, "Produce")
        self._values.append(value)

    async def _look(self) -> None:
        """Read all of the topic, and compare it with what was acknowledged."""
        topic = await self._describe()
        if topic is None or len(topic.partitions) < self._partitions:
            self._witness(f"made with {self._partitions} partitions, there is {topic}")
            return
        partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
        request = fetch.FetchRequest(
            max_wait_ms=0,
            topics=[fetch.FetchTopic(topic_id=topic.topic_id, partitions=[partition])],
        )
        answer = await self._connection.ask(request, fetch.FetchResponse, 15)
        found = answer.responses[0].partitions[0]
        self._check(found.error_code, "Fetch")
        content = found.records or b""
        assert isinstance(content, bytes | bytearray | memoryview)
        try:
            records, _ = records_of(content, iter(()), 0, is_committed=False)
        except Unreadable as unreadable:
            self._witness(f"unreadable: {unreadable}")
            raise Gone from unreadable
        values = [one.value or "" for one in records]
        prefix = f"{self._name}.{self._number}/"
        if not set(self._values) <= set(values) or not all(
            value.startswith(prefix) for value in values
        ):
            self._witness(f"acknowledged {self._values}, read {values}")

    def _check(self, code: int, what: str, *expected: ErrorCode) -> None:
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            raise Gone  # The disk is full, or cannot be read for a while.
        if code and code not in expected:
            self._witness(f"{what} answered {ErrorCode(code).name}")

    def _witness(self, sentence: str) -> None:
        self._seen.witnesses.append(
            f"topic: {TopicPartition(self._name, 0)} {self._number}: {sentence}"
        )
