"""Recovery of `FileLedger`, one damage at a time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, StorageFailure
from logstore.partition.log_config import LogConfig
from logstore.segments.batch_recovery import Recovered
from logstore.segments.file_ledger import FileLedger
from logstore.segments.ledger import LedgerFenced
from logstore.sync.group_commit import GroupCommit
from tests.logstore.ledgers import close_cleanly, open_now
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import BatchHeader, SimpleRecord, build_batch, place

DIRECTORY = "/data/topic-0"
LIMITS = LogConfig(segment_bytes=1000, index_interval_bytes=150)


class Disk:
    """A disk with one ledger on it, opened as often as one likes."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory("/data")
        self.disk.sync_all()
        self.executor = SteppedExecutor()

    def open(
        self,
        *,
        start_offset: int = 0,
        recovery_point: int = 0,
        clean: bool = False,
        epoch: int = 0,
        limits: LogConfig = LIMITS,
        before_cut: Callable[[Recovered], None] | None = None,
    ) -> FileLedger:
        self.executor = SteppedExecutor()
        group_commit = GroupCommit(
            self.disk, Durability.FSYNC, on_failure=lambda _: None, executor=self.executor
        )
        ledger = FileLedger(
            self.disk,
            DIRECTORY,
            group_commit,
            limits,
            start_offset=start_offset,
            recovery_point=recovery_point,
            clean=clean,
        )
        ledger.before_cut = before_cut or ledger.before_cut
        open_now(ledger, epoch)
        return ledger

    def filled(self, count: int = 30) -> tuple[FileLedger, list[bytes]]:
        ledger = self.open()
        batches = [append(ledger) for _ in range(count)]
        self.executor.run()
        assert len(ledger.segments.base_offsets) > 2
        return ledger, batches

    def edit(self, name: str, position: int, data: bytes) -> None:
        self.disk.open(f"{DIRECTORY}/{name}").write([data], position)

    def size(self, name: str) -> int:
        return self.disk.open(f"{DIRECTORY}/{name}").size()

    def names(self, suffix: str) -> list[str]:
        return [name for name in self.disk.list(DIRECTORY) if name.endswith(suffix)]


@pytest.fixture
def disk() -> Disk:
    return Disk()


def append(ledger: FileLedger, size: int = 50, epoch: int = 0) -> bytes:
    record = SimpleRecord(None, bytes(size), 1000 + ledger.end_offset)
    batch = build_batch([record], base_offset=ledger.end_offset, leader_epoch=epoch)
    ledger.append(batch, BatchHeader.parse(batch))
    return bytes(batch)


def contents(ledger: FileLedger) -> list[bytes]:
    return [bytes(batch) for _, batch in ledger.batches.iterate(ledger.start_offset)]


def log_name(ledger: FileLedger, segment: int) -> str:
    return f"{ledger.segments.base_offsets[segment]:020d}.log"


@pytest.mark.parametrize("interval_bytes", [1, 10_000])
@pytest.mark.parametrize("byte", [0, 7])
def test_a_clean_log_does_not_go_on_behind_a_damaged_offset(
    disk: Disk, interval_bytes: int, byte: int
) -> None:
    """No CRC covers it. With an index entry for each batch, and with none."""
    limits = replace(LIMITS, index_interval_bytes=interval_bytes)
    ledger = disk.open(limits=limits)
    batches = [append(ledger) for _ in range(30)]
    disk.executor.run()
    close_cleanly(ledger)
    name = log_name(ledger, -1)
    disk.edit(name, disk.size(name) - len(batches[-1]) + byte, b"\x70")
    told: list[Recovered] = []
    ledger = disk.open(clean=True, recovery_point=30, limits=limits, before_cut=told.append)
    assert ledger.end_offset == 29
    assert [each.lost_offsets for each in told] == [1]
    assert contents(ledger) == batches[:-1]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment", [-1, 0])
def test_a_batch_does_not_reach_beyond_where_it_ended(
    disk: Disk, clean: bool, segment: int
) -> None:
    """The base offset is damaged, and no CRC covers it. It is still one that the log has."""
    limits = replace(LIMITS, index_interval_bytes=10_000)
    ledger = disk.open(limits=limits)
    while len(ledger.segments.base_offsets) < 3:
        records = [SimpleRecord(None, bytes(50), 1000) for _ in range(2)]
        batch = build_batch(records, base_offset=ledger.end_offset)
        ledger.append(batch, BatchHeader.parse(batch))
    disk.executor.run()
    close_cleanly(ledger)
    ends = [*ledger.segments.base_offsets[1:], ledger.end_offset]
    name = log_name(ledger, segment)
    disk.edit(name, disk.size(name) - len(batch) + 7, bytes([ends[segment] - 1]))
    point = ledger.end_offset
    again = disk.open(clean=clean, recovery_point=point, limits=limits)
    if segment == -1:
        assert again.end_offset == point - 2
    else:
        # Below the recovery point only the last segment is looked at.
        assert again.end_offset == point
        again = disk.open(limits=limits)
        assert again.end_offset == ends[segment] - 2


def test_a_clean_log_keeps_what_is_behind_a_gap_where_no_recovery_point_is_known(
    disk: Disk,
) -> None:
    """The active segment of a replica of Kafka's has gaps where its leader was compacted."""
    ledger, batches = disk.filled()
    close_cleanly(ledger)
    name = log_name(ledger, -1)
    disk.edit(name, disk.size(name) - len(batches[-1]), (40).to_bytes(8))
    ledger = disk.open(clean=True)
    assert ledger.end_offset == 41
    assert len(contents(ledger)) == len(batches)


def test_what_a_log_lacks_is_told_before_it_is_cut_off(disk: Disk) -> None:
    """A start that loses power in between leaves a log that looks whole to the next one."""
    ledger, batches = disk.filled()
    disk.edit(log_name(ledger, 1), len(batches[0]) + 80, b"\xff")
    told: list[Recovered] = []
    disk.disk.lose_power_after(0)  # before any change of a file
    with pytest.raises(PowerLost):
        disk.open(before_cut=told.append)
    second = ledger.segments.base_offsets[1]
    assert (told[0].end_offset, told[0].lost_offsets) == (second + 1, 0)
    assert told[0].truncated_bytes == sum(map(len, batches[second + 1 :]))


def test_the_log_ends_at_the_first_batch_with_a_wrong_crc(disk: Disk) -> None:
    ledger, batches = disk.filled()
    second = ledger.segments.base_offsets[1]
    disk.edit(log_name(ledger, 1), len(batches[0]) + 80, b"\xff")
    again = disk.open()
    assert again.end_offset == second + 1
    assert contents(again) == batches[: second + 1]
    assert disk.names(".log") == [log_name(ledger, 0), log_name(ledger, 1)], "the rest is deleted"
    assert again.recovered is not None
    assert again.recovered.truncated_bytes == sum(map(len, batches[second + 1 :]))
    assert append(again) == contents(again)[-1]


def test_a_batch_cut_off_in_the_middle_is_dropped(disk: Disk) -> None:
    ledger, batches = disk.filled()
    name = log_name(ledger, -1)
    disk.disk.open(f"{DIRECTORY}/{name}").truncate(disk.size(name) - 1)
    assert contents(disk.open()) == batches[:-1]


def test_zeros_behind_the_log_are_dropped(disk: Disk) -> None:
    ledger, batches = disk.filled()
    name = log_name(ledger, -1)
    disk.edit(name, disk.size(name), bytes(5000))
    again = disk.open()
    assert contents(again) == batches
    assert disk.size(name) == again.segments.size_bytes - sum(
        disk.size(log_name(again, i)) for i in range(len(again.segments.base_offsets) - 1)
    )


def test_a_length_that_lies_costs_nothing(disk: Disk) -> None:
    ledger, batches = disk.filled()
    for length in (0, -1, 48, 2**31 - 1):
        name = log_name(ledger, -1)
        base = ledger.segments.base_offsets[-1]
        disk.edit(name, 8, length.to_bytes(4, "big", signed=True))
        again = disk.open()
        assert contents(again) == batches[:base]
        for batch in batches[base:]:
            again.append(batch, BatchHeader.parse(batch))
        disk.executor.run()
        ledger = again


def test_a_valid_batch_that_leaves_a_gap_is_not_shown(disk: Disk) -> None:
    ledger, batches = disk.filled()
    stray = build_batch([SimpleRecord(None, b"stray", 1)], base_offset=ledger.end_offset + 3)
    name = log_name(ledger, -1)
    disk.edit(name, disk.size(name), bytes(stray))
    assert contents(disk.open()) == batches


def test_a_segment_that_leaves_a_gap_is_not_shown(disk: Disk) -> None:
    ledger, batches = disk.filled()
    bases = ledger.segments.base_offsets
    disk.disk.unlink(f"{DIRECTORY}/{log_name(ledger, 1)}")
    again = disk.open()
    assert contents(again) == batches[: bases[1]]
    assert disk.names("index") == [f"{0:020d}.index", f"{0:020d}.timeindex"], "no orphans"


def test_gaps_below_the_recovery_point_are_compactions(disk: Disk) -> None:
    batches = [build_batch([SimpleRecord(None, bytes(50), 1)]) for _ in range(20)]
    for i, batch in enumerate(batches):
        place(batch, i * 5, 0)
    disk.disk.make_directory(DIRECTORY)
    disk.disk.open(f"{DIRECTORY}/{0:020d}.log", create=True).write(batches, 0)
    ledger = disk.open(recovery_point=1000)
    assert ledger.end_offset == 96
    assert next(ledger.batches.headers(7)).base_offset == 10, "the next one"
    hot = ledger.batches.read(7, 1, 1000)
    assert hot is not None and BatchHeader.parse(bytes(hot)).base_offset == 10
    assert contents(disk.open(recovery_point=96, clean=True)) == batches


def test_a_log_begins_with_the_first_segment_there_is(disk: Disk) -> None:
    """The checkpoint of the start offset may be lost; what a trim has left is not, with it."""
    ledger, batches = disk.filled()
    second = ledger.segments.base_offsets[1]
    for suffix in (".log", ".index", ".timeindex"):
        disk.disk.unlink(f"{DIRECTORY}/{0:020d}{suffix}")
    again = disk.open()
    assert again.start_offset == second
    assert contents(again) == batches[second:]


def test_a_roll_makes_the_names_before_it_durable(disk: Disk) -> None:
    ledger = disk.open()
    while len(ledger.segments.base_offsets) < 3:
        append(ledger)
    for seed in range(50):
        after = disk.disk.crash(Random(seed))
        names = [name for name in after.list(DIRECTORY) if name.endswith(".log")]
        assert names[:2] == [log_name(ledger, 0), log_name(ledger, 1)]


def test_segments_of_a_trim_that_came_back_are_deleted(disk: Disk) -> None:
    ledger, batches = disk.filled()
    bases = ledger.segments.base_offsets
    for suffix in (".log", ".index", ".timeindex"):  # of three segments trimmed two came back
        disk.disk.unlink(f"{DIRECTORY}/{bases[1]:020d}{suffix}")
    again = disk.open(start_offset=bases[2] + 1)
    assert again.segments.base_offsets == bases[2:]
    assert again.start_offset == bases[2] + 1
    assert contents(again) == batches[bases[2] + 1 :]
    again.opened()
    assert disk.names(".log") == [f"{base:020d}.log" for base in bases[2:]]


def test_what_lies_below_the_start_is_told_but_for_what_is_damaged(disk: Disk) -> None:
    ledger, batches = disk.filled()
    start_offset = ledger.segments.base_offsets[2]
    disk.edit(log_name(ledger, 0), len(batches[0]) + 80, b"\xff")
    again = disk.open(start_offset=start_offset)
    told = [header.base_offset for each in again.trimmed for header, _ in each.whole_batches()]
    assert told == [0, *range(2, start_offset)]
    assert contents(again) == batches[start_offset:]


def test_nothing_is_told_of_a_log_that_has_lost_what_came_after(disk: Disk) -> None:
    disk.filled(30)
    again = disk.open(start_offset=31)
    assert (again.start_offset, again.end_offset, list(again.trimmed)) == (31, 31, [])
    assert disk.names(".log") == []


def test_a_clean_stop_is_taken_at_its_word_unless_the_file_says_otherwise(disk: Disk) -> None:
    ledger, batches = disk.filled()
    close_cleanly(ledger)
    again = disk.open(recovery_point=30, clean=True)
    assert again.recovered is not None and again.recovered.scanned_bytes == 0
    assert contents(again) == batches
    name = log_name(ledger, -1)
    disk.disk.open(f"{DIRECTORY}/{name}").truncate(disk.size(name) - 1)
    again = disk.open(recovery_point=30, clean=True)
    assert contents(again) == batches[:-1]
    assert again.recovered is not None and again.recovered.lost_offsets == 1


def test_a_log_that_is_not_there_is_said_to_be_lost(disk: Disk) -> None:
    again = disk.open(start_offset=3, recovery_point=10)
    assert again.recovered is not None and again.recovered.lost_offsets == 7
    assert again.end_offset == 3
    new = disk.open()
    assert new.recovered is not None and new.recovered.lost_offsets == 0


def test_a_directory_in_a_partitions_is_left_alone(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    path = str(tmp_path / "t-0")
    (tmp_path / "t-0" / "backup.d").mkdir(parents=True)
    group_commit = GroupCommit(files, Durability.FSYNC, on_failure=lambda _: None)
    ledger = FileLedger(files, path, group_commit, LIMITS)
    open_now(ledger)
    assert (tmp_path / "t-0" / "backup.d").is_dir()
    group_commit.close()
    files.close()


def test_recovery_reads_no_more_than_what_lies_past_the_recovery_point(disk: Disk) -> None:
    ledger, batches = disk.filled()
    point = ledger.recovery_point
    assert point == ledger.segments.base_offsets[-1]
    again = disk.open(recovery_point=point)
    assert again.recovered is not None
    assert again.recovered.scanned_bytes == sum(map(len, batches[point:]))
    middle = again.segments.base_offsets[1] + 5
    third = disk.open(recovery_point=middle)
    assert third.recovered is not None
    assert third.recovered.scanned_bytes < sum(map(len, batches[middle - 4 :]))
    assert contents(third) == batches


def test_a_clean_stop_waits_for_no_sync_but_covers_what_one_has_begun(disk: Disk) -> None:
    ledger = disk.open()
    batches = [append(ledger) for _ in range(30)]
    disk.executor.step()  # a sync has begun, of closed segments too
    batches.append(append(ledger))
    close_cleanly(ledger)
    for seed in range(50):
        after = Disk()
        after.disk = disk.disk.crash(Random(seed))
        assert contents(after.open(recovery_point=31, clean=True)) == batches
    disk.executor.run()
    assert disk.disk.open_files == 0


@pytest.mark.parametrize("clean", [True, False])
def test_only_the_active_segment_is_kept_open(disk: Disk, clean: bool) -> None:
    ledger, _ = disk.filled()
    close_cleanly(ledger)
    assert disk.disk.open_files == 0
    again = disk.open(recovery_point=30 if clean else 0, clean=clean)
    assert disk.disk.open_files == 1
    assert next(again.batches.headers(0), None) is not None
    again.close()
    assert disk.disk.open_files == 0


@pytest.mark.parametrize("damage", ["missing", "zeros", "garbage", "preallocated"])
@pytest.mark.parametrize("recovery_point", [0, 25])
def test_damaged_indexes_only_make_searches_longer(
    disk: Disk, damage: str, recovery_point: int
) -> None:
    ledger, batches = disk.filled()
    close_cleanly(ledger)
    for name in [*disk.names(".index"), *disk.names(".timeindex")]:
        path = f"{DIRECTORY}/{name}"
        if damage == "missing":
            disk.disk.unlink(path)
        elif damage == "preallocated":
            disk.disk.open(path).truncate(10_000)
        elif damage == "zeros":
            disk.edit(name, 0, bytes(disk.size(name)))
        elif recovery_point == 0:  # below a recovery point an index is not garbage
            disk.edit(name, 0, Random(0).randbytes(disk.size(name)))
    again = disk.open(recovery_point=recovery_point)
    assert contents(again) == batches
    for offset in range(30):
        _, found_batch = next(again.batches.iterate(offset))
        assert bytes(found_batch) == batches[offset]
        assert next(again.batches.headers(offset)).base_offset == offset
    found = asyncio.run(again.batches.offset_for_timestamp(1017, 0, 100))
    assert found is not None and found.offset == 17
    latest = asyncio.run(again.batches.max_timestamp(100))
    assert latest is not None and latest.offset == 29


def test_what_interrupted_replacements_left_is_removed(disk: Disk) -> None:
    ledger, batches = disk.filled()
    for name in ("x.snapshot.tmp", f"{0:020d}.log.deleted", f"{0:020d}.log.cleaned"):
        disk.disk.open(f"{DIRECTORY}/{name}", create=True)
    again = disk.open()
    assert contents(again) == batches
    assert not [n for n in disk.disk.list(DIRECTORY) if n.endswith(("tmp", "deleted", "cleaned"))]


def test_an_older_epoch_is_fenced_even_when_the_last_segment_is_empty(disk: Disk) -> None:
    ledger = disk.open(epoch=7)
    append(ledger, epoch=7)
    ledger._begin_segment()
    disk.executor.run()
    with pytest.raises(LedgerFenced):
        disk.open(epoch=6)
    disk.open(epoch=7)


def test_a_full_disk_is_final_and_shows_nothing_of_the_batch(disk: Disk) -> None:
    ledger, batches = disk.filled(5 * 10)
    disk.disk.space_left = 20
    with pytest.raises(StorageFailure, match="No space left"):
        append(ledger)
    assert ledger.end_offset == 50
    assert bytes(ledger.batches.read(50, 1000, 100) or b"") == b""
    assert contents(ledger) == batches
    disk.disk.space_left = None
    with pytest.raises(StorageFailure):
        append(ledger)
    assert contents(disk.open()) == batches


@pytest.mark.parametrize("operation", ["name", "truncate", "sync_all", "write"])
def test_a_disk_that_fails_during_recovery_stops_it(disk: Disk, operation: str) -> None:
    ledger, batches = disk.filled()
    disk.edit(log_name(ledger, 1), 80, b"\xff")
    disk.disk.fail(operation, errno.EIO)
    with pytest.raises(StorageFailure):
        disk.open()
    assert contents(disk.open()) == batches[: ledger.segments.base_offsets[1]]


def test_a_log_goes_on_with_other_limits_than_before(disk: Disk) -> None:
    ledger, batches = disk.filled()
    close_cleanly(ledger)
    limits = replace(LIMITS, segment_bytes=300, index_interval_bytes=10)
    again = disk.open(recovery_point=30, clean=True, limits=limits)
    batches += [append(again) for _ in range(10)]
    assert contents(again) == batches
    assert len(again.segments.base_offsets) > len(ledger.segments.base_offsets) + 2
