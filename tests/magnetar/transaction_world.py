"""What surrounds `Transactions` in a test: real partition logs whose syncs happen step by step.

Each partition has a group commit of its own here, so that every order in which they can become
durable is possible, and a crash loses what is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import pytest

from coordinator.partitioning import partition_for
from coordinator.transactions.commit_plan import Storage
from coordinator.transactions.healing import Remedy, heal
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    ProducerIdentity,
    State,
    TopicPartition,
)
from logstore.disk.barriers import at_once
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import GroupCommit
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.participants import LocalParticipants, PendingAcks
from magnetar.runtime.refusal_counts import RefusalCounts
from magnetar.runtime.services import Services
from magnetar.runtime.transactions import Transactions
from magnetar.runtime.turns import Turns
from magnetar.security.session import Session
from magnetar.storage.leaders import Placement
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.logstore.ledgers import crash
from tests.logstore.partitions import batch_of
from tests.logstore.reading import records_from
from tests.logstore.simulated_executors import SteppedExecutor
from tests.magnetar.ending import end
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader, Marker

T = TypeVar("T")

A0, A1, OFFSETS = TopicPartition("a", 0), TopicPartition("a", 1), "__consumer_offsets"
TIMEOUT_MS = 60_000


class FailingLedger(MemoryLedger):
    """A ledger whose disk is full after so many appends."""

    appends_left: int | None = None

    def append(self, batch: Any, header: BatchHeader, **options: bool) -> None:
        if self.appends_left is not None:
            if self.appends_left == 0:
                raise StorageFailure("no space left")
            self.appends_left -= 1
        super().append(batch, header)


@dataclass(frozen=True)
class WorldTopic:
    """A topic of a world."""

    partitions: list[PartitionLog]
    id: UUID = field(default_factory=uuid4)


class WorldClock:
    """The time of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms

    def steady_ms(self) -> int:
        return self._world.now_ms


class OneNode:
    """A node without others."""

    def check_shards(self, topic: str) -> None:
        """Return: none of its shards is on its way here."""


@dataclass(frozen=True)
class WorldServices:
    """The parts of a broker that handlers of transactional requests use."""

    transactions: Transactions
    topics: World
    groups: PendingAcks
    participants: LocalParticipants
    nodes: OneNode = field(default_factory=OneNode)
    refusals: RefusalCounts = field(default_factory=RefusalCounts)
    turns: Turns = field(default_factory=Turns)
    #: Without an authorizer.
    acls: None = None


@dataclass
class World:
    """A broker's surroundings for `Transactions`, and what survives its crashes."""

    now_ms: int = 1_000_000
    next_producer_id: int = 1000
    separator: str = "~>"
    #: APART: each log has syncs of its own. ALL_OR_NOTHING: one sync covers what a step appends.
    storage: Storage = Storage.APART
    epoch: int = 0
    group_commit: GroupCommit | None = None
    executors: dict[TopicPartition, SteppedExecutor] = field(default_factory=dict)
    placement: Placement = field(default_factory=lambda: Placement(0))
    ledgers: dict[TopicPartition, FailingLedger] = field(default_factory=dict)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add_topic("a", 2)
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> Transactions:
        """Return a coordinator that has not started yet."""
        config = BrokerConfig({"joint.transactions.separator": self.separator})
        groups = self.pending_acks()
        return Transactions(
            self,
            self,
            WorldClock(self),
            config,
            offsets_partition_of=self.partition_of,
            participants=LocalParticipants(self, groups, Turns()),
            storage=self.storage,
            stop=self.failures.append,
        )

    def services(self) -> Services:
        """Return what handlers of transactional requests use of a broker."""
        groups = self.pending_acks()
        own = WorldServices(
            self.coordinator, self, groups, LocalParticipants(self, groups, Turns())
        )
        return cast("Services", own)

    # What surrounds a coordinator.

    def pending_acks(self) -> PendingAcks:
        """Return the shards of the group coordinator, as far as markers go."""
        return self

    def allocate_producer_ids(self, block_size: int) -> int:
        self.next_producer_id += block_size
        return self.next_producer_id - block_size

    def reserve_producer_ids_below(self, end_producer_id: int) -> None:
        self.next_producer_id = max(self.next_producer_id, end_producer_id)

    def by_name(self, name: str) -> WorldTopic | None:
        logs = [log for partition, log in sorted(self.logs.items()) if partition.topic == name]
        return WorldTopic(logs) if logs else None

    def ensure_internal(self, name: str) -> WorldTopic:
        if self.by_name(name) is None:
            self.add_topic(name, 2)
        topic = self.by_name(name)
        assert topic is not None
        return topic

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, len(self.ensure_internal(CONSUMER_OFFSETS).partitions))

    def partition(self, name: str, index: int) -> PartitionLog:
        log = self.logs.get(TopicPartition(name, index))
        if log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return log

    def append_marker(
        self, partition_index: int, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        log = self.partition(OFFSETS, partition_index)
        return log, log.append_marker(marker, now_ms).end_offset

    # What the disk and its failures do.

    def add_topic(self, name: str, count: int) -> None:
        for index in range(count):
            partition = TopicPartition(name, index)
            if self.storage is Storage.APART or self.group_commit is None:
                self.executor = SteppedExecutor()
                self.group_commit = GroupCommit(
                    None, Durability.MEMORY, on_failure=self.failures.append, executor=self.executor
                )
            self.executors[partition] = self.executor
            self.ledgers[partition] = FailingLedger(self.group_commit)
            self.open(partition)

    def open(self, partition: TopicPartition) -> None:
        log = PartitionLog(
            *partition,
            self.ledgers[partition],
            LogConfig(),
            steady_ms=lambda: self.now_ms,
            leader_epoch=self.epoch,
        )
        at_once(log.opening())
        self.logs[partition] = log

    def delete_topic(self, name: str) -> None:
        for partition in [one for one in self.logs if one.topic == name]:
            log = self.logs.pop(partition)
            self.ledgers.pop(partition)
            log.close()

    def step(self) -> bool:
        """Let every sync go on by one step; return whether there was one."""
        all_of_them = dict.fromkeys(self.executors.values())
        pending = [executor for executor in all_of_them if executor.pending]
        for executor in pending:
            executor.step()
        return bool(pending)

    async def until(self, work: Awaitable[T]) -> T:
        """Return the result of `work`, with a disk that syncs, once all that follows is done."""
        task = asyncio.ensure_future(work)
        await self._sync_until(task)
        await self.settle()
        return task.result()

    async def answered(self, work: Awaitable[T]) -> T:
        """Return the result of `work`, with a disk that syncs; what follows is still due."""
        task = asyncio.ensure_future(work)
        await self._sync_until(task)
        return task.result()

    async def _sync_until(self, task: asyncio.Future[T]) -> None:
        while not task.done():
            self.step()
            await asyncio.sleep(0)

    async def until_crash(
        self, client: Coroutine[None, None, None], rounds: int, chosen: Sequence[int]
    ) -> bool:
        """Let `client` act through `rounds` in which every log is synced and some in which only
        the `chosen` are; it is cut off then. Returns whether it had come to its end.

        Each of `chosen` is a set of the logs, in their order, as bits.
        """
        self.ensure_internal(TRANSACTION_STATE)
        task = asyncio.ensure_future(client)
        executors = [self.executors[one] for one in sorted(self.logs)]
        for subset in [2 ** len(executors) - 1] * rounds + [*chosen]:
            for number, executor in enumerate(executors):
                if subset >> number & 1 and executor.pending:
                    executor.step()
            await asyncio.sleep(0)
        is_over = task.done()
        task.cancel()
        return is_over

    async def until_disk_is_full(
        self, client: Coroutine[None, None, None], target: TopicPartition, appends: int
    ) -> None:
        """Let `client` act while the log of `target` (any of the state topic: all of them) takes
        so many appends."""
        self.ensure_internal(TRANSACTION_STATE)
        for one, ledger in self.ledgers.items():
            if one == target or one.topic == target.topic == TRANSACTION_STATE:
                ledger.appends_left = appends
        with suppress(StorageFailure, TimeoutError):
            await asyncio.wait_for(self.until(client), 1)

    async def settle(self) -> None:
        """Let everything under way become durable, and what follows from it, soon or later."""
        for _ in range(10):
            while self.step():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.coordinator.store.completions.complete_all()

    async def restart(self) -> None:
        """Lose what is not durable and start again, one epoch later."""
        await self.crash()
        await self.until(self.coordinator.start())

    async def crash(self) -> None:
        """Lose what is not durable; the coordinator after that has not started yet."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        self.coordinator.store.expiry.stop()
        for commit in self.coordinator.store.commits.under_way.values():
            commit.abandon()
        if (timer := self.coordinator.store.completions._timer) is not None:
            timer.cancel()
        self.epoch += 1
        self.failures.clear()
        for ledger in self.ledgers.values():
            ledger.appends_left = None
            crash(ledger)
        for partition in self.ledgers:
            self.executors[partition].run()
            self.open(partition)
        self.coordinator = self.new_coordinator()

    def adopt_if_lost(self, partition: TopicPartition) -> None:
        """Do what healing does at a start: data without its add is its producer's transaction."""
        for one in list(self.logs[partition].transactions.open_transactions()):
            data = ProducerIdentity(one.producer_id, one.producer_epoch)
            txn = self.coordinator.find_by_producer(one.producer_id)
            verdict = heal(txn, data, partition)
            assert txn is not None and verdict.remedy in (Remedy.LEAVE, Remedy.ADOPT)
            if verdict.remedy is Remedy.ADOPT:
                self.coordinator.holds.adopt(txn.transactional_id, data, partition)

    # What clients do and see.

    async def init(
        self, transactional_id: str | None = "tx", claimed: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        return await self.until(
            self.coordinator.init_producer_id(transactional_id, TIMEOUT_MS, claimed)
        )

    def end(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        commit: bool,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> Coroutine[None, None, ProducerIdentity]:
        """Ask for the end of a transaction; the result is who may begin the next one."""
        return end(
            self.coordinator,
            transactional_id,
            identity,
            commit=commit,
            transaction_version=transaction_version,
        )

    async def begin(self, *partitions: TopicPartition) -> ProducerIdentity:
        identity = await self.init()
        await self.until(self.coordinator.holds.add_partitions("tx", identity, set(partitions)))
        for partition in partitions:
            self.produce(identity, partition)
        await self.settle()
        return identity

    def produce(
        self, identity: ProducerIdentity, partition: TopicPartition, *, sequence: int = 0
    ) -> None:
        self.coordinator.holds.check_produce("tx", *identity, *partition, is_abortable_known=True)
        self.logs[partition].append(
            self.logs[partition].check(batch_by(identity, sequence), self.now_ms)
        )

    def state(self, transactional_id: str = "tx") -> State:
        txn = self.coordinator.find(transactional_id)
        assert txn is not None
        return txn.state

    def markers(self, partition: TopicPartition) -> list[tuple[str, int]]:
        """Return outcome and producer epoch of each marker in a partition."""
        return [
            (record.control_type.name, header.producer_epoch)
            for header, record in records_from(self.logs[partition].reader, 0)
            if isinstance(record, Marker)
        ]

    def stable(self, partition: TopicPartition) -> bool:
        """Whether a read_committed reader sees the whole log."""
        log = self.logs[partition]
        return log.last_stable_offset == log.log_end_offset

    def reads(self, partition: TopicPartition, isolation: Isolation) -> bool:
        """Whether a reader of that isolation gets anything of the partition."""
        found = self.logs[partition].reader.read(0, 1 << 20, isolation)
        assert found is not None
        return bool(found.records)

    def aborted(self, partition: TopicPartition) -> bool:
        found = self.logs[partition].reader.read(0, 1 << 20, Isolation.READ_COMMITTED)
        assert found is not None
        return bool(found.aborted)


def batch_by(identity: ProducerIdentity, sequence: int) -> bytearray:
    """Return a transactional batch of one record."""
    return batch_of(
        b"apple",
        producer_id=identity.producer_id,
        epoch=identity.producer_epoch,
        sequence=sequence,
        transactional=True,
    )


def refused(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, match=code.name)


class WorldConnection:
    """The connection of a client that has not logged in, for contexts of requests."""

    session = Session()
    listener: Any = None
    is_closing = False
    is_partial = False

    def mute(self, pause_ms: int) -> None:
        raise AssertionError("nothing here has quotas")

    def close(self) -> None:
        raise AssertionError("nothing here closes a connection")
