"""Logs in a shared store: opened elsewhere, read back, cut, cleaned, released, deleted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from logstore.cleaner.plan import cleanable_of
from logstore.cleaner.run import Cleaning
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.remote import remote_directory, remote_ledger, store_reads
from logstore.remote.commit_store import LogKey, NodeFenced, Wanted
from logstore.remote.hot_batches import batches_of
from logstore.remote.memory_tail import TAIL_BYTES
from logstore.remote.offload import Offload
from logstore.remote.references import decode
from logstore.remote.remote_directory import RENEW_MS, RemoteDirectory
from logstore.remote.remote_ledger import RemoteLedger
from logstore.remote.store_commits import StoreCommits
from logstore.segments.ledger import TimestampOffset
from logstore.sync.group_commit import GroupCommit
from tests.logstore.compaction import KeyedTraffic, check_compacted, check_replay
from tests.logstore.partitions import batch_of, expire
from tests.logstore.reading import records_from
from tests.logstore.remote.simulated_store import Mishap, SimulatedDatabase, SimulatedStore
from tests.logstore.simulated_objects import SimulatedObjects
from tests.simulation.simulated_loop import SimulatedLoop
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader

TOPIC_ID = UUID(int=1)
CONFIG = LogConfig(segment_bytes=1_000, snapshot_interval_bytes=400)
ALL = 2**62
_T = TypeVar("_T")


class Node:
    """One node, and its directory in a store that other nodes share."""

    def __init__(
        self,
        database: SimulatedDatabase,
        node_id: int,
        *,
        tail_bytes: int = TAIL_BYTES,
        make_store: type[SimulatedStore] = SimulatedStore,
    ) -> None:
        self.database = database
        self.failures: list[StorageFailure] = []
        #: What the directory has told of a store that is away.
        self.told: list[str] = []
        database.start_node(node_id, node_id)
        self.store = make_store(database, node_id, node_id)
        commits = StoreCommits(self.store)
        self.group_commit = GroupCommit(
            None, Durability.FSYNC, on_failure=self.failures.append, medium=commits
        )
        self.directory = RemoteDirectory(
            self.store,
            self.store,
            commits,
            self.group_commit,
            steady_ms=lambda: 1_000,
            is_loaded_whole=lambda topic: topic == "whole",
            tail_bytes=tail_bytes,
            on_away=self.told.append,
        )

    async def open(
        self, topic: str = "t", partition: int = 0, epoch: int = 1, config: LogConfig = CONFIG
    ) -> PartitionLog:
        """Load and open a log."""
        opening = self.directory.opening(topic, partition, TOPIC_ID, config, epoch)
        (log,) = await self.directory.open_together([opening])
        assert log is not None
        return log


StartNode = Callable[..., Node]


@pytest.fixture
async def start() -> AsyncIterator[StartNode]:
    """Start node after node over one database."""
    database = SimulatedDatabase()
    nodes: list[Node] = []

    def make(**options: Any) -> Node:
        nodes.append(Node(database, len(nodes) + 1, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        await node.directory.close()
        node.group_commit.close()


async def _here(work: Callable[[], _T]) -> _T:
    return work()


async def fill(log: PartitionLog, count: int, *, producer_id: int = 7) -> None:
    """Append batches of one record each, with times of their own."""
    first = log.log_end_offset
    for number in range(first, first + count):
        batch = batch_of(
            b"%06d" % number + bytes(80),
            timestamp=1_000 + number,
            producer_id=producer_id,
            epoch=0,
            sequence=number,
        )
        log.append(log.check(batch, 1_000))
        await log.durable(log.log_end_offset)


async def values(log: PartitionLog, offset: int = 0) -> list[int]:
    """Read a log to its end, as fetches of little each do."""
    read: list[int] = []
    while offset < log.high_watermark:
        found = await log.reader.read_cold(offset, 400, Isolation.READ_COMMITTED)
        assert found.records, f"nothing at {offset}"
        position = 0
        while position < len(found.records):
            header = BatchHeader.parse(found.records, position)
            read.append(header.base_offset)
            position += header.size_bytes
            offset = header.next_offset
    return read


async def test_another_node_opens_what_one_has_written(start: StartNode) -> None:
    log = await start().open()
    await fill(log, 30)
    other = await start().open(epoch=2)
    assert (other.log_start_offset, other.high_watermark) == (0, 30)
    assert await values(other) == list(range(30))
    assert other.state.producers == log.state.producers
    assert [*other.ledger.segments.facts()] == [*log.ledger.segments.facts()]
    # The five-batch window came along: a retry is answered with its first place.
    batch = batch_of(b"000029" + bytes(80), timestamp=1_029, producer_id=7, epoch=0, sequence=29)
    again = other.append(other.check(batch, 1_000))
    assert (again.base_offset, again.is_duplicate) == (29, True)
    await fill(other, 1)
    assert other.end_offset_for_epoch(1) == (1, 30)


async def test_a_log_of_a_later_leader_is_not_opened(start: StartNode) -> None:
    await fill(await start().open(epoch=3), 1)
    with pytest.raises(NodeFenced, match="epoch 2, but epoch 3 has written"):
        await start().open(epoch=2)


async def test_an_opening_reads_the_active_segment_alone(start: StartNode) -> None:
    await fill(await start().open(), 100)
    node = start()
    log = await node.open(epoch=2)
    bases = log.ledger.segments.base_offsets
    assert len(bases) > 8
    assert log.ledger.batches.read(bases[-1], 100, ALL), "hot"
    assert log.ledger.batches.read(bases[-1] - 2, 100, ALL) is None, "in the store"
    assert await values(log) == list(range(100))


async def test_without_a_snapshot_an_opening_reads_more(start: StartNode) -> None:
    node = start()
    log = await node.open()
    await fill(log, 60)
    attachments = log.ledger.attachments
    for name in attachments.names():
        if name.endswith((".state", ".snapshot")):
            attachments.write(name, b"damaged")
    await node.group_commit.settle()
    other = await start().open(epoch=2)
    assert other.state.producers == log.state.producers
    assert other.ledger.batches.read(0, 100, ALL), "all of it was needed"


async def test_a_shard_is_loaded_whole_and_stays_until_it_is_replayed(start: StartNode) -> None:
    await fill(await start().open("whole"), 60)
    node = start(tail_bytes=500)
    log = await node.open("whole", epoch=2)
    assert len([*records_from(log.reader, 0)]) == 60
    assert log.ledger.batches.read(0, 100, ALL) is None, "replayed, so it may go"
    assert await values(log) == list(range(60))


async def test_others_go_on_while_a_large_log_is_opened(
    start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await start().open("whole")
    await fill(log, 40)
    monkeypatch.setattr(remote_ledger, "_TURN_BYTES", 1_000)
    turns, of_batches = 0, list[int]()

    def noted(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
        of_batches.append(turns)
        return batches_of(data)

    monkeypatch.setattr(remote_ledger, "batches_of", noted)
    opening = asyncio.create_task(start().open("whole", epoch=2))
    while not opening.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await opening).log_end_offset == 40
    # Each commit has a batch of 157 bytes.
    assert len(of_batches) == 40
    assert max(Counter(of_batches).values()) == 7


async def test_what_is_not_in_memory_is_read_from_the_store(start: StartNode) -> None:
    node = start(tail_bytes=600)
    log = await node.open()
    await fill(log, 60)
    batches = log.ledger.batches
    assert batches.read(0, 100, ALL) is None
    assert batches.read(59, 100, ALL)
    assert await values(log) == list(range(60))
    assert await values(log, 17) == list(range(17, 60))
    assert await batches.offset_for_timestamp(1_020, 0, ALL) == TimestampOffset(20, 1_020, 1)
    assert await batches.offset_for_timestamp(2_000, 0, ALL) is None
    assert await batches.max_timestamp(31) == TimestampOffset(30, 1_030, 1)
    assert await batches.max_timestamp(60) == TimestampOffset(59, 1_059, 1)
    assert batches.bytes_between(0, 60) >= log.size_bytes


async def test_a_search_by_time_passes_over_no_segment_while_others_go(
    start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tail_bytes=600)
    log = await node.open()
    await fill(log, 60)
    bases = log.ledger.segments.base_offsets
    await node.directory.persist_start_offsets([(log, bases[3])])
    read = node.store.read

    async def read_late(*asked: Any) -> Any:
        # Retention has been faster.
        log.advance_start(bases[3])
        await node.group_commit.settle()
        return await read(*asked)

    monkeypatch.setattr(node.store, "read", read_late)
    first = TimestampOffset(bases[3], 1_000 + bases[3], 1)
    assert await log.reader.offset_for_timestamp(1_000 + bases[2]) == first


async def test_reads_of_the_store_are_bounded(
    start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(tail_bytes=600)
    log = await node.open()
    await fill(log, 60)
    monkeypatch.setattr(store_reads, "READS_MAX", 0)
    with pytest.raises(KafkaError, match="wait") as refused:
        await values(log)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    node.store.mishaps.append(Mishap.REQUEST_LOST)
    with pytest.raises(KafkaError):
        await values(log)
    assert node.directory._reads.count == 0


async def test_a_start_offset_outlives_the_node(start: StartNode) -> None:
    node = start()
    log = await node.open()
    await fill(log, 60)
    await node.directory.persist_start_offsets([(log, 33)])
    log.advance_start(33)
    await fill(log, 1)
    other = await start().open(epoch=2)
    assert other.log_start_offset == 33
    assert other.ledger.segments.base_offsets == log.ledger.segments.base_offsets
    assert await values(other, 33) == list(range(33, 61))
    stored = node.database.load(Wanted(LogKey(TOPIC_ID, 0), 0))
    assert stored.chunks[0].base_offset == log.ledger.segments.base_offsets[0] > 20
    assert stored.segments[0].base_offset == log.ledger.segments.base_offsets[0]


async def test_a_log_that_has_expired_keeps_its_offsets(start: StartNode) -> None:
    node = start()
    log = await node.open()
    await fill(log, 20)
    await node.directory.persist_start_offsets([(log, 20)])
    expire(log, 20)
    await node.group_commit.settle()
    assert not node.database.load(Wanted(LogKey(TOPIC_ID, 0), 0)).chunks
    other = await start().open(epoch=2)
    assert (other.log_start_offset, other.log_end_offset, other.size_bytes) == (20, 20, 0)
    assert other.state.producers == log.state.producers
    await fill(other, 2)
    assert await values(other, 20) == [20, 21]


async def test_nothing_of_a_released_log_is_written_later(start: StartNode) -> None:
    node = start()
    log, other = await node.open(), await node.open(partition=1)
    await fill(log, 5)
    batch = batch_of(b"last")
    log.append(log.check(batch, 1_000))
    await node.directory.release([log])
    after = node.database.load(Wanted(LogKey(TOPIC_ID, 0), 0))
    assert after.chunks[-1].end_offset == 6, "what was appended is durable"
    log.ledger.attachments.write("late", b"late")
    await fill(other, 1)
    assert node.database.load(Wanted(LogKey(TOPIC_ID, 0), 0)) == after
    again = await node.open(epoch=2)
    assert again.high_watermark == 6


class _FarStandby(SimulatedStore):
    """Its commits have their effect a while before they are proven."""

    async def prove(self, number: int) -> None:
        await asyncio.sleep(0.01)
        await super().prove(number)


async def test_a_release_waits_for_a_commit_behind_its_own(start: StartNode) -> None:
    """A move to an object begins one while that of the release is being proven. Nothing fences it
    from the next leader, who would have read the log before, or found no object after."""
    node, objects = start(make_store=_FarStandby), SimulatedObjects()
    offload = Offload(node.store, objects, "logs/own", incarnation=1, age_ms=0)
    log = await node.open()
    await fill(log, 5)
    ledger, key = log.ledger, LogKey(TOPIC_ID, 0)
    assert isinstance(ledger, RemoteLedger)
    releasing = asyncio.ensure_future(node.directory.release([log]))
    number = node.database.nodes[1].number
    while node.database.nodes[1].number == number:
        await asyncio.sleep(0)
    node.store.slow_s = 0.05
    moving = asyncio.ensure_future(offload.offload(ledger, 0))
    await releasing
    (chunk,) = node.database.load(Wanted(key, 0)).chunks
    assert not await moving
    assert decode(chunk.data).object_key in objects.objects


async def test_a_deleted_log_is_gone_from_the_store(start: StartNode) -> None:
    node = start()
    log, other = await node.open(), await node.open(partition=1)
    await fill(log, 5)
    await fill(other, 1)
    node.store.mishaps.extend([Mishap.NONE, Mishap.REQUEST_LOST])
    await node.directory.delete([log])
    await _until_left(node, 1)


async def test_a_log_that_is_closed_is_freed(start: StartNode) -> None:
    """Not only once the batches of others have taken its place in memory."""
    node = start()
    log = await node.open()
    await fill(log, 5)
    await node.directory.release([log])
    closed = weakref.ref(log.ledger)
    del log
    # One more commit, which is the last one that the medium knows.
    await node.group_commit.settle()
    gc.collect()
    assert closed() is None


async def _until_left(node: Node, *partitions: int) -> None:
    """Return when the store has these logs alone."""
    async with asyncio.timeout(10):
        while node.database.keys() != {LogKey(TOPIC_ID, each) for each in partitions}:
            await asyncio.sleep(0.001)


class _SlowToDelete(SimulatedStore):
    """A store that deletes a log when it is told to."""

    may_delete: asyncio.Event

    async def delete(self, keys: Sequence[LogKey]) -> None:
        await self.may_delete.wait()
        await super().delete(keys)


async def test_a_large_log_that_is_deleted_holds_nothing_up(start: StartNode) -> None:
    """Other changes of topics wait for the call: hand-overs, and what a dead node led."""
    node = start(make_store=_SlowToDelete)
    assert isinstance(node.store, _SlowToDelete)
    node.store.may_delete = asyncio.Event()
    logs = [await node.open(partition=partition) for partition in range(3)]
    for log in logs:
        await fill(log, 5)
    async with asyncio.timeout(10):
        await node.directory.delete(logs[:1])
        await node.directory.delete(logs[1:2])
    await fill(logs[2], 1)
    assert len(node.database.keys()) == 3
    node.store.may_delete.set()
    await _until_left(node, 2)


async def test_a_new_log_opens_in_one_step(start: StartNode) -> None:
    node = start()
    await node.directory.begin()
    log = node.directory.open("t", 0, TOPIC_ID, CONFIG, 1)
    await fill(log, 3)
    assert await values(await start().open(epoch=2)) == [0, 1, 2]


async def test_a_node_that_was_taken_over_fails(start: StartNode) -> None:
    node = start()
    log = await node.open()
    await fill(log, 3)
    node.database.start_node(1, 9)
    log.append(log.check(batch_of(b"zombie"), 1_000))
    with pytest.raises(NodeFenced):
        await log.durable(4)
    assert [type(failure) for failure in node.failures] == [NodeFenced]


async def test_compaction_replaces_segments_in_the_store(start: StartNode) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    node = start(tail_bytes=600)
    log = await node.open(config=config)
    traffic = KeyedTraffic(log)
    for number in range(80):
        producer = number % 3
        traffic.write(producer, [b"a", b"%d" % (number % 7)], transactional=producer > 0)
        if producer and number % 4 > 1:
            traffic.end(producer, commit=number % 8 > 3)
        await log.durable(log.log_end_offset)
    for producer in (1, 2):
        traffic.end(producer, commit=True)
    log.ledger.roll()
    traffic.write(0, [b"b"], transactional=False)
    await log.durable(log.log_end_offset)
    size_bytes = log.size_bytes
    found = cleanable_of(log, traffic.now_ms)
    await Cleaning(log, found, traffic.now_ms, run=_here, pause=lambda _: None).perform()
    node.directory.checkpoint_cleaned(log)
    await node.group_commit.settle()
    assert log.size_bytes < size_bytes / 2
    kept = await values(log)
    other = await start().open("whole", epoch=2, config=config)
    assert other.first_dirty_offset == log.first_dirty_offset > 0
    assert [*other.ledger.segments.facts()] == [*log.ledger.segments.facts()]
    check_compacted(other, traffic.sent)
    assert await values(other) == kept, "the node that has cleaned reads the same"
    check_replay(other, traffic.now_ms)


async def test_renewals_that_end_by_a_mistake_are_heard_of(
    start: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, loop = start(), asyncio.get_running_loop()
    heard: asyncio.Future[BaseException] = loop.create_future()

    def hear(_: object, context: dict[str, Any]) -> None:
        heard.set_result(context["exception"])

    async def settle() -> None:
        raise AssertionError("a broken invariant")

    loop.set_exception_handler(hear)
    monkeypatch.setattr(remote_directory, "RENEW_MS", 0)
    monkeypatch.setattr(node.directory._group_commit, "settle", settle)
    with pytest.raises(AssertionError, match="a broken invariant"):
        await node.directory.begin()
    assert "a broken invariant" in str(await asyncio.wait_for(heard, 30))


def test_a_node_that_writes_nothing_keeps_its_lease() -> None:
    loop = SimulatedLoop()

    async def idle() -> None:
        database = SimulatedDatabase(lambda: int(loop.now_s * 1000))
        node = Node(database, 1)
        await node.open()
        for _ in range(10):
            await asyncio.sleep(RENEW_MS / 1000)
            assert database.is_live(1)
        node.directory.abandon()
        await asyncio.sleep(10)
        assert not database.is_live(1)

    try:
        loop.run_until_complete(idle())
    finally:
        loop.close()
