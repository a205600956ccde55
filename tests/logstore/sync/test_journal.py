"""The journal: what goes there, what a start takes from it, and that a record is all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.directory.journal_replay import Replayed, replay_journal
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.segments.file_ledger import FileLedger
from logstore.sync import journal as journal_module
from logstore.sync.journal import (
    GENERATION_BITS,
    JOURNAL,
    RECORDS_AT,
    Contents,
    Entry,
    Journal,
    JournalDamaged,
    read_journal,
)
from tests.logstore.counted_disk import Counted
from tests.logstore.journal_process import (
    CONFIG,
    IDS,
    Process,
    append_at_once,
    journal_of,
    marker,
    read_file,
    stored,
)
from tests.logstore.log_process import NOW_MS
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.soak import SOAK

# Its records.

GENERATION = Random(4).getrandbits(GENERATION_BITS)
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from([one.bytes for one in IDS]),
        st.sampled_from([f"t-0/{0:020d}.log", f"téléphone-1/{42:020d}.txnindex"]),
        st.integers(0, 2**40),
        st.binary(max_size=40),
    ),
    max_size=4,
)


@given(st.lists(ENTRIES, max_size=6), st.data())
def test_records_are_read_up_to_one_that_is_not_whole_and_whole_ones_behind_it_tell_of_damage(
    records: list[list[Entry]], data: st.DataObject
) -> None:
    disk, journal = empty_journal()
    ends = [RECORDS_AT]
    for entries in records:
        journal.append(entries)
        ends.append(journal.size)
    content = bytearray(read_file(disk, f"/data/{JOURNAL}"))
    assert read_journal(bytes(content)) == ([one for each in records for one in each], [])
    if records:
        at = data.draw(st.integers(RECORDS_AT, ends[-1] - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        damaged = max(number for number, end in enumerate(ends) if end <= at)
        whole = [*records[:damaged], *records[damaged + 1 :]]
        assert read_journal(bytes(content)) == (
            [one for each in whole for one in each],
            [] if damaged == len(records) - 1 else [ends[damaged]],
        )


def empty_journal(generation: int = GENERATION) -> tuple[SimulatedDisk, Journal]:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    return disk, Journal(disk, "/data", generation)


def entries_at(*positions: int, data: bytes = b"x" * 10) -> list[Entry]:
    return [Entry(IDS[0].bytes, f"t-0/{0:020d}.log", at, data) for at in positions]


def test_what_an_earlier_round_has_left_is_not_read() -> None:
    disk, journal = empty_journal()
    entries = entries_at(*range(5))
    for entry in entries[:4]:
        journal.append([entry])
    journal.begin_round()
    journal.append(entries[4:])
    assert journal_of(disk) == entries[4:]


def test_a_power_loss_at_the_begin_of_a_round_is_no_damage() -> None:
    """However the first record of the next round is torn, over records of the last one."""
    for seed in range(300):
        random = Random(seed)
        disk = SimulatedDisk(seed=seed)
        disk.make_directory("/data")
        journal = Journal(disk, "/data", random.getrandbits(GENERATION_BITS))
        disk.sync_all()
        rounds = random.randrange(3)
        for _ in range(rounds):
            for at in range(4):
                journal.append(entries_at(at))
            journal.begin_round()
        disk.lose_power_after(random.randrange(4))
        with contextlib.suppress(PowerLost):
            journal.append(entries_at(7, data=b"y" * random.randrange(300)))
            journal.append(entries_at(8))
            journal.begin_round()
        disk = disk.crash(random)
        if disk.exists(f"/data/{JOURNAL}"):
            journal_of(disk)  # Asserts that there is none.


@pytest.mark.parametrize("generation", [1, GENERATION])
def test_what_a_client_made_up_is_no_record_unless_it_knows_the_generation(
    generation: int,
) -> None:
    """A client's bytes of an earlier round, where the next record would begin."""
    elsewhere, forger = empty_journal(generation + 1)
    forger.append(entries_at(0))
    forger.append(entries_at(4711, data=b"what no broker has written"))
    made_up = read_file(elsewhere, f"/data/{JOURNAL}")[RECORDS_AT : forger.size]
    disk, journal = empty_journal()
    # Its first record is as long as the first one of the next round, so the second one follows.
    journal.append(entries_at(0, data=bytes(_padding()) + made_up[_first_size() :]))
    journal.begin_round()
    journal.append(entries_at(1))
    assert (entries_at(1)[0] in journal_of(disk)) and (
        (len(journal_of(disk)) == 2) == (generation == GENERATION)
    )


def _first_size() -> int:
    _, journal = empty_journal()
    journal.append(entries_at(0))
    return journal.size - RECORDS_AT


def _padding() -> int:
    """How many bytes of data of a first record lie below the place of a second one."""
    return len(entries_at(0)[0].data)


def test_a_record_that_names_anything_but_a_file_of_a_log_is_refused() -> None:
    for path in ("../t-0/00000000000000000000.log", "t-0/../x.log", "t/0.log", "t-0/a.snapshot"):
        disk, journal = empty_journal()
        journal.append(entries_at(0))
        journal.append([Entry(IDS[0].bytes, path, 0, b"x")])
        assert journal_of(disk) == entries_at(0)


@pytest.mark.parametrize(("version", "build"), [(1, "an earlier"), (3, "a newer")])
def test_the_journal_of_another_build_is_not_passed_over(version: int, build: str) -> None:
    with pytest.raises(JournalDamaged, match=f"it was written by {build} build"):
        read_journal(b"MGNJ" + version.to_bytes(2, "big") + bytes(5_000))


def test_a_torn_header_is_of_no_other_build() -> None:
    disk, _ = empty_journal()
    whole = disk.open(f"/data/{JOURNAL}").read(0, 18)
    for size in range(len(whole)):
        assert read_journal(whole[:size] + bytes(5_000)) == Contents([], [])


def test_garbage_is_no_journal() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    file = disk.open(f"/data/{JOURNAL}", create=True)
    file.write([Random(1).randbytes(5_000)], 0)
    assert replay_journal(disk, "/data", lambda _: IDS[0]) == Replayed()


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
        process.append(0, b"much", size=journal_module.JOURNALED_BYTES_MAX // 2)
    process.executor.run()
    assert disk.syncs[-1] == "sync", "of the one file"
    assert journal_of(disk) == []
    process.append(0, b"much", size=journal_module.JOURNALED_BYTES_MAX)
    process.append(1, b"little")
    process.executor.run()
    assert disk.syncs[-1] == "sync_all"
    assert journal_of(disk) == []
    assert [log.high_watermark for log in process.logs] == [7, 2]


def test_a_full_journal_begins_anew_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Journal.__init__
    monkeypatch.setattr(
        Journal, "__init__", lambda self, *args: init(self, *args, capacity_bytes=1_512)
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
    monkeypatch.setattr(FileLedger, "append", append_at_once)
    seen = set[tuple[bool, ...]]()
    for seed in range(400):
        seen |= tear(seed)
    assert any(not is_decided for is_decided, *marked in seen if any(marked))


def test_a_marker_is_missing_in_its_file_until_it_is_durable_and_nothing_else_is() -> None:
    process = Process(SimulatedDisk())
    log, _ = process.start()
    process.append_all(b"makes the files")
    before = log.ledger.segments.size_bytes
    log.append_marker(marker(), NOW_MS)
    end = log.ledger.segments.size_bytes
    process.append(0, b"behind it")
    assert stored(log)[before:end] == bytes(end - before), "not even in the page cache"
    assert len(list(log.ledger.batches.headers(0))) == 3, "and yet in the log"
    process.executor.step()  # It begins.
    process.append(0, b"while it is under way")
    process.executor.step()  # Synced.
    assert stored(log)[before:end] == bytes(end - before)
    assert len(list(log.ledger.batches.headers(0))) == 4
    process.executor.step()  # Completed.
    assert log.high_watermark == 3
    marked = next(
        bytes(data) for header, data in log.ledger.batches.iterate(0) if header.is_control
    )
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
        piece = log.ledger.batches.read(offset, 10_000, 1)
        assert piece is not None and bool(piece) == (offset == 0)
        assert asyncio.run(log.ledger.batches.read_cold(offset, 10_000, 1)) == piece
    process.executor.run()
    piece = log.ledger.batches.read(1, 200_000, log.log_end_offset)
    assert piece is not None and len(piece) == log.ledger.segments.size_bytes - len(
        log.ledger.batches.read(0, 1, 1) or b""
    )


def test_a_segment_may_end_before_what_is_held_back_is_written() -> None:
    for seed in range(60):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        log, _ = process.start()
        process.append_all(b"makes the files")
        for _ in range(20):
            log.append_marker(marker(), NOW_MS)
        assert len(log.ledger.segments.base_offsets) > 1
        for _ in range(random.randrange(8)):
            process.executor.step()
        seen = log.high_watermark
        process.disk = process.disk.crash(random)
        assert process.start()[0].log_end_offset in range(seen, 22)
        process.append(0, b"goes on")
        process.executor.run()


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
    count = journal_module.JOURNALED_BYTES_MAX // 500
    process.start(count)
    process.append_all(b"makes the files")
    disk.syncs.clear()
    for index in range(count):
        process.append(index, b"much together", size=500)
    process.executor.run()
    assert "sync_all" in disk.syncs
    assert journal_of(disk) == []


def test_on_a_full_disk_it_begins_a_new_round_over_the_blocks_that_it_has() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    journal = Journal(disk, "/data", GENERATION)
    entry = Entry(IDS[0].bytes, f"t-0/{0:020d}.log", 0, bytes(300_000))
    journal.append([entry])
    disk.space_left = 10_000
    for _ in range(5):
        journal.append([entry])
    assert disk.facts(f"/data/{JOURNAL}").size_bytes < 1_100_000
    large = Entry(IDS[0].bytes, f"t-0/{0:020d}.log", 0, bytes(2_000_000))
    with pytest.raises(OSError, match="No space left"):
        journal.append([large])
    found = read_journal(read_file(disk, f"/data/{JOURNAL}"))
    assert found.entries and not found.damaged_at
