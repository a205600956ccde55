"""Clients that read, process and write in transactions, and what happens to them.

A worker takes its group's offset for one input, writes values that are its alone to several
partitions, commits the next offset with them. It is stopped for longer than its timeout, loses
answers, has requests delayed until they mean nothing any more, is fenced by a worker of the same
transactional id, retries, gives up. What it may rely on goes into the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from logstore.disk.durability import Durability
from tests.logstore.partitions import batch_of
from tests.simulation.history import History, Outcome, Transaction
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    offset_fetch,
    produce,
    txn_offset_commit,
)

M = TypeVar("M", bound=Message)

TARGETS = [TopicPartition(topic, index) for topic in ("a", "b") for index in range(2)]
TIMEOUT_MS = 2_000
ATTEMPTS = 6
#: How often a worker asks again, 20 ms apart, when told to: longer than anything may take.
PATIENCE = 500

AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
#: What a worker may be told once another has its transactional id, or its timeout has struck.
_FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,  # with its last epoch, so that its id was rotated
    ErrorCode.KAFKA_STORAGE_ERROR,  # The disk is full, or cannot be read: it begins anew.
}


class Fenced(Exception):
    """Another worker has taken over, or this worker must begin anew."""


class Reached(Protocol):
    """The broker, as a worker reaches it."""

    @property
    def durability(self) -> Durability: ...

    @property
    def incarnations(self) -> int:
        """How many brokers there were."""
        ...

    def now_ms(self) -> int: ...

    async def call(self, request: Message, response_class: type[M], version: int) -> M:
        """Return the broker's answer. Gone: the outcome is unknown."""
        ...

    def mine(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Take a task for one of the worker's: the broker's end does not end it."""
        ...


@dataclass
class Luck:
    """How often what goes wrong, as probabilities."""

    lost_answer: float = 0.05
    held_request: float = 0.03
    pause: float = 0.05
    give_up: float = 0.05
    abort: float = 0.2


@dataclass
class Worker:
    world: Reached
    history: History
    random: Random
    name: str
    transactional_id: str
    key: OffsetKey
    is_v2: bool
    luck: Luck = field(default_factory=Luck)
    #: After which answers it asks again, and which more mean that where there are several nodes.
    again: Set[ErrorCode] = AGAIN
    again_of_nodes: Set[ErrorCode] = frozenset[ErrorCode]()
    #: Whether some of its requests have several partitions.
    is_spreading: bool = False
    is_ending: bool = False
    identity: ProducerIdentity = ProducerIdentity(-1, -1)
    _sequences: dict[TopicPartition, int] = field(default_factory=dict)
    _count: int = 0
    #: The broker's incarnation that the transaction began in.
    _incarnation: int = 0
    #: A delayed request of ours is still on its way.
    _is_haunted: bool = False

    async def run(self) -> None:
        """Work until told to end."""
        while not self.is_ending:
            try:
                await self._init()
                offset = await self._fetch_offset()
                while not self.is_ending:
                    offset = await self._transact(offset)
                    await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.2)))
            except (Fenced, Gone):
                await asyncio.sleep(self.random.choice((0.01, 0.3, 3)))

    # One transaction.

    async def _transact(self, offset: int) -> int:
        """Return the offset reached: further if committed, the same if aborted."""
        self._count += 1
        self._incarnation = self.world.incarnations
        to_offset = offset + self.random.randint(1, 3)
        one = self.history.begin(f"{self.name}.{self._count}", self.key, offset, to_offset)
        partitions = self.random.sample(TARGETS, self.random.randint(1, 3))
        if not self.is_v2:
            await self._add_partitions(partitions)
        number = 0
        for together in self._requests(partitions):
            await self._produce(one, together, number)
            await self._perhaps_pause()
            number += len(together)
        await self._send_offsets(to_offset)
        await self._perhaps_pause()
        if self.random.random() < self.luck.give_up:
            raise Fenced  # the process has died; another worker ends its transaction
        commit = self.random.random() >= self.luck.abort
        await self._end(one, commit=commit)
        if not commit:
            return offset
        found = await self._fetch_offset()
        if found < to_offset:  # further, if another worker has gone on
            self._witness(f"{one.name} committed {to_offset}, a fetch after it says {found}")
        return to_offset

    def _requests(self, partitions: list[TopicPartition]) -> list[list[TopicPartition]]:
        """Return the partitions of each request that writes."""
        rounds = self.random.randint(1, 2)
        if self.is_spreading and self.random.random() < 0.5:
            return [partitions] * rounds
        return [[partition] for partition in partitions * rounds]

    async def _init(self) -> None:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        for _ in range(PATIENCE):
            answer = await self._ask(request, init_producer_id.InitProducerIdResponse, 5)
            if answer.error_code not in self.again_of_nodes:
                break
            await asyncio.sleep(0.02)
        self._check(answer.error_code, "InitProducerId")
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        self._is_haunted = False

    async def _fetch_offset(self) -> int:
        topic = offset_fetch.OffsetFetchRequestTopics(
            name=self.key.topic, partition_indexes=[self.key.partition]
        )
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self.key.group_id, topics=[topic])
        request = offset_fetch.OffsetFetchRequest(groups=[group], require_stable=True)
        for _ in range(PATIENCE):
            answer = await self._ask(request, offset_fetch.OffsetFetchResponse, 9)
            answered = answer.groups[0]
            code = answered.error_code
            if not code:
                found = answered.topics[0].partitions[0]
                code = found.error_code
            if code not in self.again:
                self._check(code, "OffsetFetch")
                return max(found.committed_offset, 0)
            await asyncio.sleep(0.05)
        self._check(code, "OffsetFetch")
        raise Fenced

    async def _add_partitions(self, partitions: list[TopicPartition]) -> None:
        topics = [
            add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[index])
            for topic, index in partitions
        ]
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=topics,
        )

        def code(answer: add_partitions_to_txn.AddPartitionsToTxnResponse) -> int:
            results = answer.results_by_topic_v3_and_below
            return results[0].results_by_partition[0].partition_error_code

        for _ in range(PATIENCE):
            answer = await self._ask(request, add_partitions_to_txn.AddPartitionsToTxnResponse, 3)
            if code(answer) not in self.again:
                break
            await asyncio.sleep(0.02)
        self._check(code(answer), "AddPartitionsToTxn")

    async def _produce(
        self, one: Transaction, partitions: Sequence[TopicPartition], number: int
    ) -> None:
        """Write to these partitions by one request, and what was not taken by further ones."""
        values = {
            partition: self._values(one, partition, number + index)
            for index, partition in enumerate(partitions)
        }
        waiting = {partition: self._batch(partition, values[partition]) for partition in partitions}
        code = 0
        for _ in range(PATIENCE):
            request, version = self._producing(waiting), 12 if self.is_v2 else 11
            answer = await self._ask(request, produce.ProduceResponse, version)
            for topic in answer.responses:
                for told in topic.partition_responses:
                    code = told.error_code
                    if code not in self.again:
                        self._check(code, "Produce")
                        partition = TopicPartition(topic.name, told.index)
                        del waiting[partition]
                        sequence = self._sequences.get(partition, 0)
                        self._sequences[partition] = sequence + len(values[partition])
            if not waiting:
                return
            await asyncio.sleep(0.02)
        self._check(code, "Produce")

    def _values(self, one: Transaction, partition: TopicPartition, number: int) -> list[str]:
        values = [f"{one.name}/{number}.{index}" for index in range(self.random.randint(1, 3))]
        one.values.setdefault(partition, []).extend(values)
        return values

    def _batch(self, partition: TopicPartition, values: Sequence[str]) -> bytearray:
        return batch_of(
            *[value.encode() for value in values],
            timestamp=self.world.now_ms(),
            producer_id=self.identity.producer_id,
            epoch=self.identity.producer_epoch,
            sequence=self._sequences.get(partition, 0),
            transactional=True,
        )

    def _producing(self, waiting: Mapping[TopicPartition, bytearray]) -> produce.ProduceRequest:
        topics: dict[str, list[produce.PartitionProduceData]] = {}
        for partition, batch in waiting.items():
            data = produce.PartitionProduceData(index=partition.partition, records=batch)
            topics.setdefault(partition.topic, []).append(data)
        return produce.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                produce.TopicProduceData(name=name, partition_data=data)
                for name, data in topics.items()
            ],
        )

    async def _send_offsets(self, offset: int) -> None:
        if not self.is_v2:
            adding = add_offsets_to_txn.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                group_id=self.key.group_id,
            )
            for _ in range(PATIENCE):
                added = await self._ask(adding, add_offsets_to_txn.AddOffsetsToTxnResponse, 4)
                if added.error_code not in self.again_of_nodes:
                    break
                await asyncio.sleep(0.02)
            self._check(added.error_code, "AddOffsetsToTxn")
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(
            partition_index=self.key.partition, committed_offset=offset
        )
        topic = txn_offset_commit.TxnOffsetCommitRequestTopic(
            name=self.key.topic, partitions=[partition]
        )
        request = txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.key.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            topics=[topic],
        )
        version = 5 if self.is_v2 else 4
        for _ in range(PATIENCE):
            answer = await self._ask(request, txn_offset_commit.TxnOffsetCommitResponse, version)
            code = answer.topics[0].partitions[0].error_code
            if code not in self.again_of_nodes:
                break
            await asyncio.sleep(0.02)
        self._check(code, "TxnOffsetCommit")

    async def _end(self, one: Transaction, *, commit: bool) -> None:
        request = end_txn.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=commit,
        )
        if commit:
            one.outcome = Outcome.UNKNOWN
            one.end_asked_s = asyncio.get_running_loop().time()
        for _ in range(PATIENCE):
            answer = await self._ask(request, end_txn.EndTxnResponse, 5 if self.is_v2 else 4)
            if answer.error_code not in self.again:
                break
            await asyncio.sleep(0.02)
        if commit and answer.error_code == ErrorCode.INVALID_TXN_STATE and self.is_v2:
            # Its timeout has struck first: that it was aborted is an answer too, and a promise.
            one.outcome = Outcome.ABORTED
            raise Fenced
        self._check(answer.error_code, "EndTxn")
        if commit:
            one.outcome = Outcome.COMMITTED
            one.ended_s = asyncio.get_running_loop().time()
        if self.is_v2:
            ended = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            if ended == self.identity:
                self._witness(f"{one.name}: EndTxn has not bumped the epoch")
            self.identity = ended
            self._sequences.clear()

    # What goes wrong.

    async def _ask(self, request: Message, response_class: type[M], version: int) -> M:
        """Return an answer, asking again where none came. Gone: given up, outcome unknown."""
        for _ in range(ATTEMPTS):
            if self._is_haunted and not self.is_v2:
                # Of transaction version 1 a late request may land in the next transaction: only a
                # new epoch keeps it out, which is why clients take one.
                raise Gone
            if self.random.random() < self.luck.held_request:
                self._hold(request, response_class, version)
                await asyncio.sleep(self.random.choice((0.0, 0.05)))
                continue
            try:
                answer = await self.world.call(request, response_class, version)
            except Gone:
                answer = None
            if answer is not None and self.random.random() >= self.luck.lost_answer:
                return answer
            if self.random.random() < self.luck.give_up:
                break
            await asyncio.sleep(self.random.choice((0.0, 0.01, 0.1)))
        raise Gone

    def _hold(self, request: Message, response_class: type[M], version: int) -> None:
        """Send the request some time later by itself, and drop its answer."""
        self._is_haunted = True

        async def arrive() -> None:
            await asyncio.sleep(self.random.choice((0.005, 0.02, 0.1, 0.5, 3)))
            with contextlib.suppress(Gone):
                await self.world.call(request, response_class, version)

        self.world.mine(asyncio.create_task(arrive()))

    async def _perhaps_pause(self) -> None:
        if self.random.random() < self.luck.pause:
            await asyncio.sleep(self.random.choice((0.1, TIMEOUT_MS / 1000 + 0.5)))

    def _check(self, code: int, what: str) -> None:
        if code in _FENCED:
            raise Fenced
        if code == ErrorCode.TRANSACTION_ABORTABLE and self._may_have_lost_an_add():
            raise Fenced
        if code != ErrorCode.NONE:
            self._witness(f"{self.name} {self.identity}: {what} answered {ErrorCode(code).name}")
            raise Fenced

    def _may_have_lost_an_add(self) -> bool:
        """Under version 1 an add may be lost with the power, unless data was acknowledged."""
        is_power_lost = self.world.durability is Durability.FSYNC
        return not self.is_v2 and is_power_lost and self.world.incarnations != self._incarnation

    def _witness(self, sentence: str) -> None:
        self.history.witnesses.append(f"refused: {sentence}")
