"""An idempotent producer of several partitions, all of which are in each of its requests.

One request is under way at a time, and goes to the leader of the first partition in it. What was
refused or not answered is in the next request, with the same sequence. Some batches are so large
that their logs take turns in commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.routed import RoutedConnection
from tests.simulation.observations import Observations, Sent
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import init_producer_id, produce
from wire.records import SimpleRecord, build_batch

_AGAIN = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_RECORDS_MAX = 12
#: How often a partition has no part in a round.
_LEFT_OUT = 0.2


class SpreadProducer:
    """Writes values that no other client writes, to partitions of one topic."""

    def __init__(
        self,
        name: str,
        ways: Mapping[TopicPartition, RoutedConnection],
        seen: Observations,
        random: Random,
    ) -> None:
        """`ways`: to the leader of each partition."""
        self.name = name
        self._ways = ways
        self._seen = seen
        self._random = random
        self._producer_id = -1
        self._sequences = dict.fromkeys(ways, 0)
        self._number = 0
        #: What is not answered yet: one batch of each partition at most.
        self._waiting: dict[TopicPartition, list[Sent]] = {}
        self.is_ending = False

    async def run(self) -> None:
        """Write until told to end, then wait until all is answered."""
        while not self.is_ending or self._waiting:
            try:
                if self._producer_id < 0:
                    await self._init()
                if not self.is_ending:
                    self._make()
                if self._waiting:
                    await self._send()
                await asyncio.sleep(self._random.choice((0, 0.02, 0.1, 0.3)))
            except Gone:
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    async def _init(self) -> None:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        way = next(iter(self._ways.values()))
        answer = await way.ask(request, init_producer_id.InitProducerIdResponse, 4)
        if answer.error_code:
            # The catalog of a cluster may not answer in time.
            if answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
                self._witness("InitProducerId", answer.error_code)
            raise Gone
        self._producer_id = answer.producer_id

    def _make(self) -> None:
        """Begin a batch of most partitions that have none."""
        made_s = asyncio.get_running_loop().time()
        for partition in self._ways:
            if partition in self._waiting or self._random.random() < _LEFT_OUT:
                continue
            records = []
            for _ in range(self._random.randint(1, _RECORDS_MAX)):
                self._number += 1
                value = f"{self.name}/{self._number}"
                sent = Sent(partition, self.name, self._number, self.name, value, made_s=made_s)
                records.append(sent)
            self._seen.sent += records
            self._waiting[partition] = records

    async def _send(self) -> None:
        """Send all that waits in one request. Raises Gone."""
        first = next(iter(self._waiting))
        answer = await self._ways[first].ask(self._request(), produce.ProduceResponse, 9)
        for topic in answer.responses:
            for told in topic.partition_responses:
                self._on_told(TopicPartition(topic.name, told.index), told)
        if first in self._waiting:
            # The others are sent first, to a leader of theirs.
            self._waiting[first] = self._waiting.pop(first)

    def _on_told(self, partition: TopicPartition, told: produce.PartitionProduceResponse) -> None:
        if told.error_code in _AGAIN:
            return
        records = self._waiting.pop(partition)
        if told.error_code:
            self._witness(f"Produce to {partition}", told.error_code)
            return
        self._sequences[partition] += len(records)
        now_s = asyncio.get_running_loop().time()
        for index, one in enumerate(records):
            one.offset, one.told_s = told.base_offset + index, now_s

    def _request(self) -> produce.ProduceRequest:
        data = [
            produce.PartitionProduceData(
                index=partition.partition, records=self._batch(self._sequences[partition], records)
            )
            for partition, records in self._waiting.items()
        ]
        (topic,) = {partition.topic for partition in self._waiting}
        return produce.ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[produce.TopicProduceData(name=topic, partition_data=data)],
        )

    def _batch(self, sequence: int, records: Sequence[Sent]) -> bytearray:
        return build_batch(
            [
                SimpleRecord(
                    one.key.encode(),
                    str(one.value).encode(),
                    1_700_000_000_000 + int(one.made_s * 1000),
                )
                for one in records
            ],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )

    def _witness(self, what: str, code: int) -> None:
        self._seen.witnesses.append(f"refused: {self.name}: {what} answered {ErrorCode(code).name}")
