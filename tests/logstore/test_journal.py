"""The journal: what goes there, what a start takes from it, and that a record is all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore import group_commit as group_commit_module
from logstore import journal as journal_module
from logstore import unsynced as unsynced_module
from logstore.durability import Durability
from logstore.file_ledger import FileLedger
from logstore.journal import JOURNAL, Entry, Journal, read_entries, replay_journal
from logstore.ledger import StorageFailure
from logstore.log_config import LogConfig
from logstore.partition import PartitionLog
from logstore.testing.partitions import batch_of
from logstore.testing.simulated_disk import PowerLost, SimulatedDisk
from logstore.transaction_marker import TransactionMarker
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.soak import SOAK
from wire.records import place

IDS = (UUID(int=1), UUID(int=2))
CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=200)


class Counted(SimulatedDisk):
    """Says which syncs there were."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.syncs: list[str] = []

    def before(self, operation: str) -> None:
        if operation.startswith("sync"):
            self.syncs.append(operation)
        super().before(operation)


class Process(LogProcess):
    """Some partitions in a directory, and the process that has them open."""

    def __init__(self, disk: SimulatedDisk, durability: Durability = Durability.FSYNC) -> None:
        self.disk = disk
        self.durability = durability

    def start(
        self, count: int = 2, topic_id: UUID = IDS[0], config: LogConfig = CONFIG
    ) -> list[PartitionLog]:
        self.begin(self.disk, config, self.durability)
        self.logs = [self.directory.open("t", index, topic_id) for index in range(count)]
        return self.logs

    def append(self, index: int, *values: bytes, size: int = 0) -> None:
        log = self.logs[index]
        log.append(batch_of(*values, bytes(size)) if size else batch_of(*values), NOW_MS)

    def append_all(self, *values: bytes) -> None:
        for index in range(len(self.logs)):
            self.append(index, *values)
        self.executor.run()


def stored(log: PartitionLog) -> bytes:
    """What is in the file of the active segment."""
    base = log.ledger.segment_base_offsets[-1]
    assert isinstance(log.ledger, FileLedger)
    return read_file(log.ledger._files, f"/data/t-{log.partition}/{base:020d}.log")


def read_file(disk: Any, path: str) -> bytes:
    file = disk.open(path)
    try:
        content: bytes = file.read(file.size(), 0)
    finally:
        file.close()
    return content


def journal_of(disk: SimulatedDisk) -> list[Entry]:
    return list(read_entries(read_file(disk, f"/data/{JOURNAL}")))


def marker(producer_id: int = 0) -> TransactionMarker:
    return TransactionMarker(producer_id, 0, 0, True, 1)


# Its records.

ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from([one.bytes for one in IDS]),
        st.sampled_from(["t-0/0.log", "téléphone-1/00000000000000000042.txnindex"]),
        st.integers(0, 2**40),
        st.binary(max_size=40),
    ),
    max_size=4,
)


@given(st.lists(ENTRIES, max_size=6), st.data())
def test_records_are_read_up_to_the_first_that_is_not_whole(
    records: list[list[Entry]], data: st.DataObject
) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    journal = Journal(disk, "/data")
    ends = [0]
    for entries in records:
        journal.append(entries)
        ends.append(journal.size)
    content = bytearray(read_file(disk, f"/data/{JOURNAL}"))
    assert list(read_entries(bytes(content))) == [one for each in records for one in each]
    if records:
        at = data.draw(st.integers(0, ends[-1] - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        whole = max(number for number, end in enumerate(ends) if end <= at)
        assert list(read_entries(bytes(content))) == [
            one for each in records[:whole] for one in each
        ]


def test_what_an_earlier_round_has_left_is_not_read() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    journal = Journal(disk, "/data")
    entries = [Entry(IDS[0].bytes, "t-0/0.log", at, b"x" * 10) for at in range(5)]
    for entry in entries[:4]:
        journal.append([entry])
    journal.restart()
    journal.append(entries[4:])
    assert journal_of(disk) == entries[4:]


def test_garbage_is_no_journal() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    file = disk.open(f"/data/{JOURNAL}", create=True)
    file.write([Random(1).randbytes(5_000)], 0)
    assert replay_journal(disk, "/data", lambda _: IDS[0]) == 0


# What goes there.


def test_few_bytes_in_many_files_are_one_sync_of_one_file() -> None:
    process = Process(disk := Counted())
    process.start(4)
    process.append_all(b"makes the files")
    disk.syncs.clear()
    for _ in range(3):
        process.append_all(b"few")
    assert disk.syncs[-3:] == ["sync"] * 3
    assert len(disk.syncs) <= 4, "one more where the journal grows"
    assert all(log.high_watermark == 4 for log in process.logs)


def test_many_bytes_are_synced_where_they_are() -> None:
    process = Process(disk := Counted())
    process.start(2, config=LogConfig())
    process.append_all(b"makes the files")
    for _ in range(2):
        process.append(0, b"much", size=unsynced_module.JOURNALED_BYTES_MAX // 2)
    process.executor.run()
    assert disk.syncs[-1] == "sync", "of the one file"
    assert journal_of(disk) == []
    process.append(0, b"much", size=unsynced_module.JOURNALED_BYTES_MAX)
    process.append(1, b"little")
    process.executor.run()
    assert disk.syncs[-1] == "sync_all"
    assert journal_of(disk) == []
    assert [log.high_watermark for log in process.logs] == [7, 2]


def test_a_full_journal_begins_anew_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Journal.__init__
    monkeypatch.setattr(
        Journal, "__init__", lambda self, *args: init(self, *args, capacity_bytes=1_000)
    )
    for seed in range(30):
        process = Process(SimulatedDisk(seed=seed))
        process.start()
        for number in range(40):
            process.append_all(b"%d" % number)
        assert len(journal_of(process.disk)) < 20
        process.disk = process.disk.crash(Random(seed))
        assert [log.log_end_offset for log in process.start()] == [40, 40]


def test_what_the_journal_has_is_synced_where_it_belongs_while_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "FLUSH_BYTES", 2_000)
    process = Process(disk := Counted())
    log, _ = process.start(config=LogConfig())
    process.append_all(b"makes the files")
    disk.syncs.clear()
    sizes = []
    for _ in range(40):
        process.append_all(b"few")
        sizes.append(len(journal_of(disk)))
    assert 2 <= disk.syncs.count("sync_all") <= 8
    assert sizes == sorted(sizes), "it does not begin anew for that"
    disk.fail("sync_all", 5)
    while not process.failures:
        process.append_all(b"few")
    with pytest.raises(StorageFailure):
        process.append(0, b"too late")
    assert log.high_watermark > 40


# All or nothing.


def decide(process: Process) -> None:
    """Append a decision to one log, then, in the same step, markers that rest on it."""
    process.append(0, b"decision")
    for log in process.logs[1:]:
        log.append_marker(marker(), NOW_MS)


def tear(seed: int) -> set[tuple[bool, ...]]:
    """Lose power at any moment of some decisions; return which logs had the last of them."""
    random = Random(seed)
    process = Process(SimulatedDisk(seed=seed))
    process.start(3)
    process.append_all(b"makes the files")
    decided = random.randrange(4)
    with contextlib.suppress(PowerLost):
        for _ in range(decided):
            decide(process)
            process.executor.run()
        process.disk.lose_power_after(random.randrange(8))
        decide(process)
        for index in range(3) if random.random() < 0.3 else ():
            process.append(index, b"behind it")
        while process.executor.step():
            pass
    process.disk = process.disk.crash(random)
    ends = [log.log_end_offset for log in process.start(3)]
    assert min(ends) >= 1 + decided
    return {tuple(end > 1 + decided for end in ends)}


def test_no_marker_is_there_without_its_decision_nor_without_the_others() -> None:
    seen = set[tuple[bool, ...]]()
    for seed in range(400 * SOAK):
        seen |= tear(seed)
    assert {one[1:] for one in seen} == {(False, False), (True, True)}
    assert all(is_decided for is_decided, *marked in seen if any(marked))


def test_without_the_journal_there_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    append = FileLedger.append
    monkeypatch.setattr(
        FileLedger,
        "append",
        lambda self, *args, may_wait=False, is_atomic=False: append(self, *args, may_wait=may_wait),
    )
    seen = set[tuple[bool, ...]]()
    for seed in range(400):
        seen |= tear(seed)
    assert any(not is_decided for is_decided, *marked in seen if any(marked))


def test_a_marker_is_missing_in_its_file_until_it_is_durable_and_nothing_else_is() -> None:
    process = Process(SimulatedDisk())
    log, _ = process.start()
    process.append_all(b"makes the files")
    before = log.ledger.size_bytes
    log.append_marker(marker(), NOW_MS)
    end = log.ledger.size_bytes
    process.append(0, b"behind it")
    assert stored(log)[before:end] == bytes(end - before), "not even in the page cache"
    assert len(list(log.ledger.headers(0))) == 3, "and yet in the log"
    process.executor.step()  # It begins.
    process.append(0, b"while it is under way")
    process.executor.step()  # Synced.
    assert stored(log)[before:end] == bytes(end - before)
    assert len(list(log.ledger.headers(0))) == 4
    process.executor.step()  # Completed.
    assert log.high_watermark == 3
    marked = next(bytes(data) for header, data in log.ledger.batches(0) if header.is_control)
    assert stored(log)[before:end] == marked
    process.executor.run()
    assert log.high_watermark == 4
    process.disk = process.disk.crash(Random(3))
    assert [one.log_end_offset for one in process.start()] == [4, 1]


def test_readers_at_the_end_of_what_is_durable_find_nothing_and_no_hole() -> None:
    process = Process(SimulatedDisk())
    log, _ = process.start(config=LogConfig(index_interval_bytes=1))
    process.append_all(b"makes the files")
    for _ in range(600):  # More than the segment knows the places of.
        log.append_marker(marker(), NOW_MS)
        process.append(0, b"behind it")
    for offset in (0, 1):
        piece = log.ledger.read(offset, 10_000, 1)
        assert piece is not None and bool(piece) == (offset == 0)
        assert asyncio.run(log.ledger.read_cold(offset, 10_000, 1)) == piece
    process.executor.run()
    piece = log.ledger.read(1, 200_000, log.log_end_offset)
    assert piece is not None and len(piece) == log.ledger.size_bytes - len(
        log.ledger.read(0, 1, 1) or b""
    )


def test_a_segment_may_end_before_what_is_held_back_is_written() -> None:
    for seed in range(60):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        log, _ = process.start()
        process.append_all(b"makes the files")
        for _ in range(20):
            log.append_marker(marker(), NOW_MS)
        assert len(log.ledger.segment_base_offsets) > 1
        for _ in range(random.randrange(8)):
            process.executor.step()
        seen = log.high_watermark
        process.disk = process.disk.crash(random)
        assert process.start()[0].log_end_offset in range(seen, 22)
        process.append(0, b"goes on")
        process.executor.run()


# What a start takes from it.


def test_a_kill_loses_nothing_that_was_in_the_journal_alone() -> None:
    process = Process(SimulatedDisk())
    process.start()
    process.append_all(b"makes the files")
    process.logs[0].append_marker(marker(), NOW_MS)
    process.executor.step()
    process.executor.step()  # Synced, not completed: it is in no file yet.
    process.disk = process.disk.kill(Random(1))
    assert process.start()[0].log_end_offset == 2


def test_nothing_of_a_deleted_topic_comes_back_in_the_next_of_its_name() -> None:
    for seed in range(40):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        process.start(1)
        for _ in range(6):
            process.append_all(b"of the first")
        asyncio.run(process.directory.delete(process.logs))
        process.logs = [process.directory.open("t", 0, IDS[1])]
        process.append(0, b"of the second")
        for _ in range(random.randrange(6)):
            process.executor.step()
        seen = process.logs[0].high_watermark
        process.disk = process.disk.crash(random)
        (log,) = process.start(1, IDS[1])
        assert seen <= log.log_end_offset <= 1


def test_a_topic_id_that_a_crash_has_torn_is_durable_before_the_journal_is_used_again() -> None:
    stories = 0
    for seed in range(200):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        (log,) = process.start(1)
        data = batch_of(b"first", producer_id=0, epoch=0, sequence=0, transactional=True)
        log.append(data, NOW_MS)
        process.disk = process.disk.crash(random)
        (log,) = process.start(1)
        if not log.log_end_offset:
            continue  # Nothing of it is left.
        stories += 1
        log.append_marker(marker(), NOW_MS)  # Healing's, and nothing else at first.
        for _ in range(2):
            process.append_all(b"acknowledged")
        process.disk = process.disk.crash(random)
        assert process.start(1)[0].log_end_offset == 4
    assert stories > 5


def test_a_clean_stop_leaves_none_and_a_clean_mark_overrules_it() -> None:
    process = Process(disk := SimulatedDisk())
    process.start()
    process.append_all(b"made files")
    process.append_all(b"journaled.")
    content = read_file(disk, f"/data/{JOURNAL}")
    assert journal_of(disk)
    process.stop()
    assert JOURNAL not in disk.list("/data")
    log = disk.open("/data/t-0/00000000000000000000.log")
    log.truncate(whole := log.size() // 2)  # Somebody else has cut it, and stopped cleanly.
    disk.open(f"/data/{JOURNAL}", create=True).write([content], 0)
    process.start()
    assert process.logs[0].log_end_offset == 1
    assert len(stored(process.logs[0])) == whole


def test_what_somebody_else_has_written_there_since_is_left_alone() -> None:
    process = Process(disk := SimulatedDisk())
    first, _ = process.start()
    process.append_all(b"made files")
    process.append_all(b"journaled.")
    content = read_file(disk, f"/data/{JOURNAL}")
    size = first.ledger.size_bytes // 2
    process.directory.abandon()
    log = disk.open("/data/t-0/00000000000000000000.log")
    log.truncate(size)
    theirs = batch_of(b"of a Kafka that has gone on, and was killed")
    place(theirs, 1, 7)
    log.write([theirs], size)
    second, other = process.start()
    assert content and bytes(stored(second)[size:]) == theirs
    assert (second.log_end_offset, other.log_end_offset) == (2, 2)


@pytest.mark.parametrize("durability", [Durability.PAGE_CACHE, Durability.MEMORY])
def test_where_no_sync_is_asked_for_there_is_no_journal(durability: Durability) -> None:
    process = Process(disk := SimulatedDisk(), durability)
    process.start()
    process.append_all(b"anything")
    process.logs[0].append_marker(marker(), NOW_MS)
    process.executor.run()
    assert process.logs[0].high_watermark == 2
    assert not disk.exists(f"/data/{JOURNAL}")


def test_what_fsync_had_in_the_journal_is_there_with_less_durability_too() -> None:
    process = Process(SimulatedDisk())
    process.start()
    process.append_all(b"makes the files")
    process.append_all(b"journaled")
    process.disk = process.disk.crash(Random(5))
    process.durability = Durability.PAGE_CACHE
    assert [log.log_end_offset for log in process.start()] == [2, 2]


# Settled, and failed.


async def settle(process: Process, log: PartitionLog) -> None:
    settled = asyncio.ensure_future(log.ledger.settled())
    while not settled.done():
        await asyncio.sleep(0)
        process.executor.run()
    await settled


def test_once_settled_nothing_is_left_to_be_replayed() -> None:
    process = Process(disk := SimulatedDisk())
    log, _ = process.start()
    process.append_all(b"makes the files")
    process.append_all(b"journaled")
    asyncio.run(settle(process, log))
    assert journal_of(disk) == []
    process.disk = disk.crash(Random(1))
    process.begin(process.disk, CONFIG)
    assert [process.directory.open("t", 0, IDS[0]).log_end_offset] == [2]


FAILURES: dict[str, Callable[[Counted], None]] = {
    "the journal cannot be synced": lambda disk: disk.fail("sync", 5),
    "the journal cannot be written": lambda disk: disk.fail("write", 28, after=1),
    "a held batch cannot be written": lambda disk: disk.fail("write", 28, after=2),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_told_to_all_who_wait(what: str) -> None:
    process = Process(disk := Counted())
    first, second = process.start()
    process.append_all(b"makes the files")
    process.append_all(b"and the journal")

    async def both() -> list[object]:
        process.append(0, b"written at once")
        second.append_marker(marker(), NOW_MS)
        waiting = [asyncio.ensure_future(log.durable(3)) for log in (first, second)]
        await asyncio.sleep(0)
        process.executor.run()
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    FAILURES[what](disk)
    told = asyncio.run(both())
    assert [type(one).__name__ for one in told] == ["StorageFailure"] * 2
    assert len(process.failures) == 1


def test_the_group_has_a_limit_too() -> None:
    process = Process(disk := Counted())
    count = group_commit_module.JOURNALED_BYTES_MAX // 500
    process.start(count)
    process.append_all(b"makes the files")
    disk.syncs.clear()
    for index in range(count):
        process.append(index, b"much together", size=500)
    process.executor.run()
    assert "sync_all" in disk.syncs
    assert journal_of(disk) == []
