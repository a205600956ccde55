"""The contract of `Ledger`: in memory, in files, on a simulated disk, in a simulated store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, FileSystem, StorageFailure
from logstore.partition.log_config import LogConfig
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import Ledger, LedgerFenced, SegmentFacts, TimestampOffset
from logstore.segments.memory_ledger import MemoryLedger
from logstore.sync.group_commit import GroupCommit, LedgerClosed
from tests.logstore.ledgers import close_cleanly, durable, open_now
from tests.logstore.remote_stores import SteppedStore
from tests.logstore.simulated_disk import SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import BatchHeader, SimpleRecord, build_batch

ALL = 2**62


@dataclass
class Store:
    """A place for one ledger, which can be closed and opened again."""

    kind: str
    files: FileSystem | None
    directory: str
    limits: LogConfig = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    executor: SteppedExecutor = field(default_factory=SteppedExecutor)
    failures: list[StorageFailure] = field(default_factory=list)
    _memory: MemoryLedger | None = None

    def __post_init__(self) -> None:
        if self.kind == "remote":
            self.remote = SteppedStore(self.limits, self.executor)
            self.group_commit = self.remote.group_commit
            return
        durability = Durability.MEMORY if self.kind == "memory" else Durability.FSYNC
        self.group_commit = GroupCommit(
            self.files, durability, on_failure=self.failures.append, executor=self.executor
        )

    def open(self, epoch: int = 0, *, recovery_point: int = 0, clean: bool = False) -> Ledger:
        if self.kind == "remote":
            remote = self.remote.load()
            open_now(remote, epoch)
            return remote
        if self.files is None:
            if self._memory is None:
                self._memory = MemoryLedger(
                    self.group_commit, segment_bytes=self.limits.segment_bytes
                )
            open_now(self._memory, epoch)
            return self._memory
        ledger = FileLedger(
            self.files,
            self.directory,
            self.group_commit,
            self.limits,
            recovery_point=recovery_point,
            clean=clean,
        )
        open_now(ledger, epoch)
        return ledger


@pytest.fixture(params=["memory", "file", "simulated", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in ("memory", "remote"):
        yield Store(request.param, None, "")
    elif request.param == "simulated":
        disk = SimulatedDisk()
        disk.make_directory("/data")
        yield Store("simulated", disk, "/data/topic-0")
    else:
        files = DiskFiles(str(tmp_path))
        yield Store("file", files, str(tmp_path / "topic-0"))
        files.close()


def batch(
    base_offset: int, count: int = 1, *, size: int = 10, timestamp: int = 1000, epoch: int = 0
) -> bytearray:
    records = [SimpleRecord(None, bytes(size), timestamp + i) for i in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch)


def append(ledger: Ledger, count: int = 1, **kwargs: int) -> bytes:
    data = batch(ledger.end_offset, count, **kwargs)
    ledger.append(data, BatchHeader.parse(data))
    return bytes(data)


def read(ledger: Ledger, offset: int, max_bytes: int = 10**6, end_offset: int = ALL) -> bytes:
    """Read hot, and where that would block, cold."""
    data = ledger.batches.read(offset, max_bytes, end_offset)
    if data is None:
        data = asyncio.run(ledger.batches.read_cold(offset, max_bytes, end_offset))
    return bytes(data)


def read_all(ledger: Ledger, offset: int, max_bytes: int = 10**6) -> bytes:
    """Read to the end, however many segments there are."""
    parts = []
    while offset < ledger.end_offset:
        part = read(ledger, offset, max_bytes)
        assert part, f"nothing at {offset}"
        parts.append(part)
        offset = last_header(part).next_offset
    return b"".join(parts)


def last_header(data: bytes) -> BatchHeader:
    position = 0
    while True:
        header = BatchHeader.parse(data, position)
        position += header.size_bytes
        if position >= len(data):
            assert position == len(data), "whole batches only"
            return header


def test_a_new_ledger_is_empty(store: Store) -> None:
    ledger = store.open()
    assert (ledger.start_offset, ledger.end_offset, ledger.durable_end_offset) == (0, 0, 0)
    assert ledger.segments.size_bytes == 0
    assert read(ledger, 0) == b""
    assert list(ledger.batches.headers(0)) == []
    assert asyncio.run(ledger.batches.max_timestamp(ALL)) is None
    assert asyncio.run(ledger.batches.offset_for_timestamp(0, 0, ALL)) is None


def test_an_append_is_readable_at_once_and_durable_after_a_sync(store: Store) -> None:
    ledger = store.open()
    data = append(ledger, 3)
    assert (ledger.end_offset, ledger.durable_end_offset) == (3, 0)
    assert read(ledger, 0) == data
    store.executor.run()
    assert ledger.durable_end_offset == 3
    assert ledger.segments.size_bytes == len(data)


def test_the_hook_hears_of_durability_before_waiters_and_after_all_ledgers(store: Store) -> None:
    ledger = store.open()
    heard: list[tuple[int, int]] = []
    ledger.on_durable = lambda offset: heard.append((offset, ledger.durable_end_offset))

    async def wait() -> None:
        append(ledger, 2)
        waiter = asyncio.create_task(durable(ledger, 2))
        await asyncio.sleep(0)
        assert not waiter.done() and not heard
        store.executor.run()
        assert heard == [(2, 2)]
        await waiter
        await durable(ledger, 1)

    asyncio.run(wait())


def test_an_append_during_a_sync_waits_for_the_next(store: Store) -> None:
    ledger = store.open()
    append(ledger)
    store.executor.step()
    first = ledger.durable_end_offset
    append(ledger)
    store.executor.step()
    store.executor.step()
    store.executor.run()
    assert first <= 1
    assert ledger.durable_end_offset == 2


def test_waiters_of_a_closed_ledger_are_told(store: Store) -> None:
    ledger = store.open()

    async def wait() -> None:
        append(ledger)
        waiter = asyncio.create_task(durable(ledger, 1))
        await asyncio.sleep(0)
        ledger.close()
        with pytest.raises(LedgerClosed):
            await waiter

    asyncio.run(wait())


def test_a_read_begins_with_the_batch_that_contains_the_offset(store: Store) -> None:
    ledger = store.open()
    first, second, third = (append(ledger, 5) for _ in range(3))
    assert read(ledger, 0) == first + second + third
    assert read(ledger, 4) == first + second + third
    assert read(ledger, 5) == second + third
    assert read(ledger, 14) == third
    assert read(ledger, 15) == b""


def test_a_read_returns_whole_batches_within_its_limits(store: Store) -> None:
    ledger = store.open()
    first, second = append(ledger, 5), append(ledger, 5)
    append(ledger, 5)
    assert read(ledger, 0, len(first) + len(second)) == first + second
    assert read(ledger, 0, len(first) + len(second) + 1) == first + second
    assert read(ledger, 0, len(first) + len(second) - 1) == first
    assert read(ledger, 2, 1) == first, "at least one batch"
    assert bytes(ledger.batches.read(2, 1, ALL, at_least_one=False) or b"") == b""
    assert bytes(ledger.batches.read(2, len(first), ALL, at_least_one=False) or b"") == first


def test_a_read_ends_at_its_end_offset(store: Store) -> None:
    ledger = store.open()
    first, second = append(ledger, 5), append(ledger, 5)
    assert read(ledger, 0, end_offset=5) == first
    assert read(ledger, 0, end_offset=9) == first
    assert read(ledger, 0, end_offset=10) == first + second
    assert read(ledger, 5, end_offset=5) == b""
    assert read(ledger, 0, end_offset=4) == b"", "not even the first, if it ends past the end"


def test_batches_are_found_across_segments(store: Store) -> None:
    ledger = store.open()
    batches = [append(ledger, 1 + i % 3, size=20 + i) for i in range(100)]
    assert len(ledger.segments.base_offsets) > 3
    headers = [BatchHeader.parse(data) for data in batches]
    assert list(ledger.batches.headers(0)) == headers
    for data, header in zip(batches, headers, strict=True):
        for offset in range(header.base_offset, header.next_offset):
            assert next(ledger.batches.headers(offset)) == header
            assert bytes(next(ledger.batches.iterate(offset))[1]) == data
            assert read(ledger, offset, 1) == data
    assert [bytes(data) for _, data in ledger.batches.iterate(0)] == batches
    assert read_all(ledger, 0, 500) == b"".join(batches)
    assert ledger.segments.size_bytes == sum(map(len, batches))


def test_cold_reads_answer_as_hot_ones(store: Store) -> None:
    ledger = store.open()
    for i in range(60):
        append(ledger, 2, size=5 + i)
    store.executor.run()
    for offset in range(0, ledger.end_offset, 3):
        for max_bytes in (1, 150, 400, 10_000):
            for end_offset in (offset + 3, ALL):
                hot = ledger.batches.read(offset, max_bytes, end_offset)
                cold = asyncio.run(ledger.batches.read_cold(offset, max_bytes, end_offset))
                assert hot is None or hot == cold
                for _ in range(50):
                    # A page that is being written back just then would have to be waited for.
                    if (hot := ledger.batches.read(offset, max_bytes, end_offset)) is not None:
                        break
                    asyncio.run(ledger.batches.read_cold(offset, max_bytes, end_offset))
                assert hot == cold, "hot once read"


def test_bytes_are_counted_without_a_read(store: Store) -> None:
    ledger = store.open()
    sizes = [len(append(ledger)) for _ in range(40)]
    assert len(ledger.segments.base_offsets) > 1
    active_base = ledger.segments.base_offsets[-1]
    for start in range(41):
        for end in range(41):
            counted = ledger.batches.bytes_between(start, end)
            exact = sum(sizes[start:end])
            # Elsewhere than at the end a segment counts whole.
            is_exact = store.kind in ("memory", "remote") or start >= active_base or start >= end
            assert counted == exact if is_exact else counted >= exact
    close_cleanly(ledger)


def test_a_roll_is_announced_before_its_segment_begins(store: Store) -> None:
    ledger = store.open()
    rolls: list[tuple[int, int]] = []
    ledger.on_roll = lambda base_offset: rolls.append((base_offset, ledger.end_offset))
    for _ in range(40):
        append(ledger, size=100)
    assert [base for base, _ in rolls] == list(ledger.segments.base_offsets)[1:]
    assert all(base == end for base, end in rolls)


def test_everything_is_there_again_after_a_clean_stop(store: Store) -> None:
    ledger = store.open()
    batches = [append(ledger, 2, size=50) for _ in range(50)]
    close_cleanly(ledger)
    point = ledger.recovery_point
    assert point == ledger.end_offset
    again = store.open(recovery_point=point, clean=True)
    assert (again.start_offset, again.end_offset, again.durable_end_offset) == (0, 100, 100)
    assert read_all(again, 0) == b"".join(batches)
    batches.append(append(again, 2))
    assert read_all(again, 0) == b"".join(batches)


def test_an_unclean_stop_of_the_process_loses_nothing(store: Store) -> None:
    ledger = store.open()
    batches = [append(ledger, 2, size=50) for _ in range(50)]
    store.executor.run()
    ledger.close()
    again = store.open()
    assert (again.end_offset, again.durable_end_offset) == (100, 100)
    assert read_all(again, 0) == b"".join(batches)


def test_a_lower_epoch_than_the_last_writers_is_fenced(store: Store) -> None:
    ledger = store.open(3)
    append(ledger, epoch=3)
    store.executor.run()
    close_cleanly(ledger)
    with pytest.raises(LedgerFenced):
        store.open(2)
    assert store.open(3).end_offset == 1


def test_records_are_found_by_their_timestamp(store: Store) -> None:
    ledger = store.open()
    for i in range(50):
        append(ledger, 3, size=30, timestamp=1000 + 10 * i)
    assert asyncio.run(ledger.batches.offset_for_timestamp(0, 0, ALL)) == TimestampOffset(
        0, 1000, 0
    )
    assert asyncio.run(ledger.batches.offset_for_timestamp(1001, 0, ALL)) == TimestampOffset(
        1, 1001, 0
    )
    assert asyncio.run(ledger.batches.offset_for_timestamp(1003, 0, ALL)) == TimestampOffset(
        3, 1010, 0
    )
    assert asyncio.run(ledger.batches.offset_for_timestamp(1492, 0, ALL)) == TimestampOffset(
        149, 1492, 0
    )
    assert asyncio.run(ledger.batches.offset_for_timestamp(1492, 0, 149)) is None, (
        "not below the end offset"
    )
    assert asyncio.run(ledger.batches.offset_for_timestamp(1493, 0, ALL)) is None
    assert asyncio.run(ledger.batches.max_timestamp(ALL)) == TimestampOffset(149, 1492, 0)


def test_the_largest_timestamp_may_be_anywhere(store: Store) -> None:
    ledger = store.open()
    for i in range(50):
        append(ledger, size=30, timestamp=9000 if i == 7 else 1000 + i)
    assert asyncio.run(ledger.batches.max_timestamp(ALL)) == TimestampOffset(7, 9000, 0)
    assert asyncio.run(ledger.batches.offset_for_timestamp(8000, 0, ALL)) == TimestampOffset(
        7, 9000, 0
    )


@pytest.mark.parametrize("size", [30, 400])
def test_the_largest_timestamp_is_looked_for_below_a_bound(store: Store, size: int) -> None:
    ledger = store.open()
    timestamps = [1000 + (i * 37) % 50 * 10 for i in range(50)]
    for timestamp in timestamps:
        append(ledger, size=size, timestamp=timestamp)
    for end in range(51):
        largest = max(timestamps[:end], default=-1)
        found = asyncio.run(ledger.batches.max_timestamp(end))
        if end:
            assert found == TimestampOffset(timestamps.index(largest), largest, 0)
        else:
            assert found is None


def timed_segments(ledger: Ledger) -> list[SegmentFacts]:
    """All facts, those read from the disk that the memory does not have."""
    for unknown in [facts for facts in ledger.segments.facts() if facts.max_timestamp_ms is None]:
        asyncio.run(ledger.segments.read_max_timestamp(unknown.base_offset))
    return list(ledger.segments.facts())


def test_segments_tell_their_bounds_sizes_and_largest_timestamps(store: Store) -> None:
    ledger = store.open()
    assert sum(facts.size_bytes for facts in ledger.segments.facts()) == 0
    for i in range(60):
        append(ledger, size=100, timestamp=9000 if i == 7 else 1000 + i if i < 50 else -1)
    store.executor.run()
    facts = timed_segments(ledger)
    bases = list(ledger.segments.base_offsets)
    assert [each.base_offset for each in facts] == bases
    assert [each.end_offset for each in facts] == [*bases[1:], 60]
    assert sum(each.size_bytes for each in facts) == ledger.segments.size_bytes
    largest = [
        max([9000 if i == 7 else 1000 + i if i < 50 else -1 for i in range(start, end)])
        for start, end in zip(bases, [*bases[1:], 60], strict=True)
    ]
    assert len(set(largest)) > 3 and 9000 in largest and -1 in largest
    assert [each.max_timestamp_ms for each in facts] == largest
    close_cleanly(ledger)
    again = store.open(recovery_point=60, clean=True)
    assert timed_segments(again) == facts
    asyncio.run(again.segments.read_max_timestamp(1))  # no segment begins there: nothing happens
    again.close()
    scanned = store.open()
    assert timed_segments(scanned) == facts


def test_a_roll_ends_the_active_segment_so_that_a_trim_takes_it_whole(store: Store) -> None:
    ledger = store.open()
    ledger.roll()
    for _ in range(3):
        append(ledger)
    store.executor.run()
    rolled: list[int] = []
    ledger.on_roll = rolled.append
    ledger.roll()
    ledger.roll()
    assert rolled == [3], "an empty segment is not ended"
    assert list(ledger.segments.base_offsets) == [0, 3]
    ledger.trim(3)
    assert list(ledger.segments.facts()) == [SegmentFacts(3, 3, 0, -1)]
    assert ledger.segments.size_bytes == 0
    append(ledger, timestamp=5000)
    store.executor.run()
    assert list(ledger.segments.base_offsets) == [3]
    assert last_header(read(ledger, 3)).base_offset == 3
    ledger.close()
    again = store.open()
    assert (again.start_offset, again.end_offset) == (3, 4)
    assert [facts.max_timestamp_ms for facts in timed_segments(again)] == [5000]


def test_a_trim_deletes_whole_segments_and_hides_the_rest(store: Store) -> None:
    ledger = store.open()
    for _ in range(60):
        append(ledger, size=100)
    store.executor.run()
    bases = ledger.segments.base_offsets
    size = ledger.segments.size_bytes
    ledger.trim(bases[2] + 1)
    assert ledger.start_offset == bases[2] + 1
    assert ledger.segments.base_offsets == bases[2:]
    assert ledger.segments.size_bytes < size
    assert last_header(read(ledger, bases[2] + 1, 1)).base_offset == bases[2] + 1
    ledger.trim(0)
    assert ledger.start_offset == bases[2] + 1, "never back"
    ledger.trim(ledger.end_offset)
    assert (ledger.start_offset, ledger.end_offset) == (60, 60)
    append(ledger)
    assert last_header(read(ledger, 60)).base_offset == 60


def test_attachments_are_replaced_appended_listed_and_deleted(store: Store) -> None:
    ledger = store.open()
    assert ledger.attachments.names() == []
    ledger.attachments.write("a.snapshot", b"long first")
    ledger.attachments.write("a.snapshot", b"second")
    ledger.attachments.write("b.snapshot", b"", sync=False)
    ledger.attachments.append("c.txnindex", b"one")
    ledger.attachments.append("c.txnindex", b"two")
    store.executor.run()
    ledger.attachments.append("c.txnindex", b"three")
    append(ledger)
    assert ledger.attachments.names() == ["a.snapshot", "b.snapshot", "c.txnindex"]
    assert ledger.attachments.read("a.snapshot") == b"second"
    assert ledger.attachments.read("b.snapshot") == b""
    assert ledger.attachments.read("c.txnindex") == b"onetwothree"
    assert ledger.attachments.read("d") is None
    ledger.attachments.delete("a.snapshot")
    ledger.attachments.delete("a.snapshot")
    store.executor.run()
    close_cleanly(ledger)
    assert store.open().attachments.names() == ["b.snapshot", "c.txnindex"]


def test_a_batch_that_does_not_begin_at_the_end_is_a_bug(store: Store) -> None:
    ledger = store.open()
    data = batch(5)
    with pytest.raises(AssertionError):
        ledger.append(data, BatchHeader.parse(data))
