"""What a start takes from the journal, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from unittest import mock

import pytest

import logstore.directory.journal_replay
from logstore.directory.damage import Damage
from logstore.directory.journal_replay import Replayed
from logstore.disk.durability import Durability
from logstore.sync.journal import JOURNAL, RECORDS_AT, JournalDamaged
from tests.logstore.journal_process import (
    CONFIG,
    IDS,
    Process,
    journal_of,
    marker,
    read_file,
    stored,
)
from tests.logstore.log_process import NOW_MS
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from wire.records import place


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


def end_of_the_second_topic() -> int:
    """Where a new topic's log ends, whose one batch is as long as that of the topic before it."""
    process = Process(SimulatedDisk())
    process.start(1)
    for _ in range(3):
        process.append_all(b"of the first")
    asyncio.run(process.directory.delete(process.logs))
    process.logs = [process.directory.open("t", 0, IDS[1])]
    process.append(0, b"of the other")
    process.disk = process.disk.kill(Random(1))
    return process.start(1, IDS[1])[0].log_end_offset


def test_the_entries_of_a_deleted_topic_are_told_from_those_of_the_next_by_the_topic_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert end_of_the_second_topic() == 1
    monkeypatch.setattr(logstore.directory.journal_replay, "_stored_id", lambda *_: mock.ANY)
    assert end_of_the_second_topic() == 3


def test_a_topic_id_that_a_crash_has_torn_is_durable_before_the_journal_is_used_again() -> None:
    stories = 0
    for seed in range(200):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        (log,) = process.start(1)
        data = batch_of(b"first", producer_id=0, epoch=0, sequence=0, transactional=True)
        log.append(log.check(data, NOW_MS))
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
    log.truncate(whole := log.size() // 2)  # Another broker has cut it, and stopped cleanly.
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
    size = first.ledger.segments.size_bytes // 2
    process.directory.abandon()
    log = disk.open("/data/t-0/00000000000000000000.log")
    log.truncate(size)
    theirs = batch_of(b"of a Kafka that has gone on, and was killed")
    place(theirs, 1, 7)
    log.write([theirs], size)
    second, other = process.start()
    assert content and bytes(stored(second)[size:]) == theirs
    assert (second.log_end_offset, other.log_end_offset) == (2, 2)


@pytest.mark.parametrize("joined_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize("left", [0.3, 0.55, 1.0])
def test_however_many_entries_are_compared_at_once_the_log_is_what_it_was(
    joined_bytes: int, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(disk := SimulatedDisk())
    process.start(1)
    process.append_all(b"makes the files")
    for number in range(9):
        process.append_all(b"journaled, number %d" % number)
    whole = bytes(stored(process.logs[0]))
    process.directory.abandon()
    # As a power loss may leave it: the file ends within an entry.
    disk.open("/data/t-0/00000000000000000000.log").truncate(int(len(whole) * left))
    monkeypatch.setattr(logstore.directory.journal_replay, "_JOINED_BYTES_MAX", joined_bytes)
    (log,) = process.start(1)
    assert bytes(stored(log)) == whole and process.directory.replayed.written == 9


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


def test_what_a_kill_has_left_in_memory_is_durable_before_any_part_of_it_is() -> None:
    """Else power that goes while the next start replays it could leave one marker of two."""
    for seed in range(300):
        random = Random(seed)
        process = Process(SimulatedDisk(seed=seed))
        process.start(3)
        process.append_all(b"makes the files")
        process.append_all(b"and the journal")
        process.append(0, b"decision")
        for log in process.logs[1:]:
            log.append_marker(marker(), NOW_MS)
        process.executor.step()  # In the journal's page cache, and no further.
        process.disk = process.disk.kill(random)
        process.disk.lose_power_after(random.randrange(8))
        with contextlib.suppress(PowerLost):
            process.start(3)
        process.disk.keep_power()
        process.disk = process.disk.crash(random)
        ends = [log.log_end_offset for log in process.start(3)]
        assert ends[1] == ends[2] <= ends[0]


def lose(disk: SimulatedDisk, path: str, begin: int, end: int, left: bytes = b"") -> None:
    """Put zeros in the place of bytes of a file, and `left` where they begin."""
    file = disk.open(path)
    file.write([left + bytes(end - begin - len(left))], begin)
    file.close()


LOG = f"/data/t-0/{0:020d}.log"


def journaled(count: int = 4) -> tuple[Process, list[int]]:
    """A process that was killed; and where the batches begin that the journal has, and end."""
    process = Process(SimulatedDisk())
    first, _ = process.start()
    process.append_all(b"makes the files")
    ends = [first.ledger.segments.size_bytes]
    for _ in range(count):
        process.append_all(b"journaled")
        ends.append(first.ledger.segments.size_bytes)
    process.disk = process.disk.kill(Random(1))
    return process, ends


@pytest.mark.parametrize("left", [b"\xff", b"stale bytes of a file that is long gone", b""])
@pytest.mark.parametrize("place", range(4))
def test_whatever_a_lost_write_has_left_there_gives_way_to_what_was_acknowledged(
    left: bytes, place: int
) -> None:
    process, ends = journaled()
    lose(process.disk, LOG, ends[place], ends[place + 1], left)
    assert [log.log_end_offset for log in process.start()] == [5, 5]


def test_a_batch_whose_place_alone_is_torn_is_ours() -> None:
    process, ends = journaled()
    lose(process.disk, LOG, ends[1], ends[1] + 8)
    assert [log.log_end_offset for log in process.start()] == [5, 5]
    assert process.directory.replayed.foreign == ()


def test_what_another_broker_has_compacted_is_left_alone() -> None:
    """No batch begins there where ours did: to write it would tear theirs."""
    process, _ = journaled()
    theirs = [batch_of(b"compacted, so longer than ours and elsewhere") for _ in range(3)]
    for offset, batch in enumerate(theirs):
        place(batch, offset, 7)
    file = process.disk.open(LOG)
    file.truncate(0)
    file.write(theirs, 0)
    first, _ = process.start()
    assert bytes(stored(first)) == b"".join(theirs)
    assert process.directory.replayed.foreign == (f"t-0/{0:020d}.log",)


def damaged_journal() -> Process:
    """A killed process whose journal is damaged in its second record, and a lost write beside."""
    process, ends = journaled()
    lose(process.disk, LOG, ends[1], ends[4])
    content = read_file(process.disk, f"/data/{JOURNAL}")
    second = content.find(b"MGNR", RECORDS_AT + 1)
    lose(process.disk, f"/data/{JOURNAL}", second + 40, second + 41, b"\xff")
    return process


def test_a_damaged_record_before_whole_ones_is_a_reason_not_to_start() -> None:
    process = damaged_journal()
    before = read_file(process.disk, LOG)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="journal.damage.accept"):
            process.start()
        assert read_file(process.disk, LOG) == before
        process.disk = process.disk.kill(Random(2))


def test_who_accepts_a_damaged_journal_gets_the_rest_and_is_told_what_is_lost() -> None:
    process = damaged_journal()
    told: list[Damage] = []
    process.begin(process.disk, CONFIG, on_damage=told.append, accepts_journal_damage=True)
    logs = [process.directory.open("t", index, IDS[0]) for index in range(2)]
    assert [log.log_end_offset for log in logs] == [2, 5]
    assert [(one.partition, one.end_offset, one.lost_offsets) for one in told] == [(0, 2, 3)]
    assert len(process.directory.replayed.damaged_at) == 1


def test_a_partition_that_no_longer_says_its_topic_is_told_before_the_journal_goes() -> None:
    """A start that ends in between leaves a log that looks whole to the next one."""
    process, _ = journaled()
    lose(process.disk, "/data/t-0/partition.metadata", 0, 4, b"\xff" * 4)
    told: list[tuple[tuple[str, ...], bool]] = []

    def tell(replayed: Replayed) -> None:
        told.append((replayed.unknown, process.disk.exists(f"/data/{JOURNAL}")))

    process.begin(process.disk, CONFIG, on_replayed=tell)
    assert told == [(("t-0",), True)]


def test_a_partition_that_was_deleted_is_not_told() -> None:
    process = Process(SimulatedDisk())
    process.start(1)
    for _ in range(3):
        process.append_all(b"of a deleted topic")
    asyncio.run(process.directory.delete(process.logs))
    process.disk = process.disk.kill(Random(1))
    assert journal_of(process.disk)
    process.begin(process.disk, CONFIG)
    assert process.directory.replayed.unknown == ()


def test_a_log_that_ends_before_its_last_journaled_batch_is_told() -> None:
    process, ends = journaled()
    file = process.disk.open(LOG)
    file.truncate(ends[0] - 1)
    told: list[Damage] = []
    process.begin(process.disk, CONFIG, on_damage=told.append)
    assert process.directory.open("t", 0, IDS[0]).log_end_offset == 0
    assert [(one.partition, one.end_offset, one.lost_offsets) for one in told] == [(0, 0, 5)]
