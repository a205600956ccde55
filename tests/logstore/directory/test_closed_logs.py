"""What a clean stop leaves for the next start: it is believed only where nothing has changed."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logstore.directory.closed_logs import (
    CLOSED_LOGS,
    CorruptClosedLogs,
    Stamps,
    decode_closed_logs,
    encode_closed_logs,
)
from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import File
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.state_recovery import ClosedLog
from logstore.segments.closed_segments import ClosedSegments
from logstore.sync.group_commit import GroupCommit
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor
from wire.records import SimpleRecord, build_batch

TOPIC_ID = UUID(int=7)
NOW_MS = 1_000
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)

INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.lists(st.integers(0, 2**63 - 1), max_size=3)
LOGS = st.builds(
    ClosedLog,
    st.none() | st.uuids(),
    st.builds(
        ClosedSegments,
        st.lists(st.tuples(INT64, INT64), min_size=1, max_size=3),
        INT64,
        INT64,
        INT64,
    ),
    OFFSETS,
    OFFSETS,
    st.binary(max_size=50),
)
KEYS = st.tuples(st.text(max_size=20), st.integers(0, 2**31 - 1))


class Process:
    """A directory with one partition, on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.executor = SteppedExecutor()
        commit = GroupCommit(
            disk, Durability.FSYNC, on_failure=lambda _: None, executor=self.executor
        )
        self.directory = LogDirectory(
            "/data",
            disk,
            commit,
            CONFIG,
            steady_ms=lambda: NOW_MS,
            call_later=lambda _, __: Never(),
        )

    def open(self) -> PartitionLog:
        self.directory.found_partitions()
        return self.directory.open("topic", 0, TOPIC_ID)

    def append(self, log: PartitionLog, count: int, *, timestamp_ms: int = NOW_MS) -> None:
        for _ in range(count):
            log.append(
                log.check(build_batch([SimpleRecord(b"k", b"v" * 40, timestamp_ms)]), NOW_MS)
            )
        self.executor.run()

    def stop(self) -> SimulatedDisk:
        asyncio.run(self.directory.close())
        return self.disk.kill(Random(1))


class Never:
    """A timer that is not run."""

    def cancel(self) -> None:
        """Nothing will happen anyway."""


def stopped(count: int = 30) -> tuple[SimulatedDisk, PartitionLog]:
    process = Process(SimulatedDisk())
    log = process.open()
    log.append(log.check(batch_of(b"x", producer_id=1, epoch=0, sequence=0), NOW_MS))
    process.append(log, count)
    return process.stop(), log


@given(st.dictionaries(KEYS, st.tuples(st.builds(Stamps, INT64, INT64), LOGS), max_size=4))
def test_what_is_decoded_is_what_was_encoded(
    logs: dict[tuple[str, int], tuple[Stamps, ClosedLog]],
) -> None:
    data = encode_closed_logs((key, stamps, log) for key, (stamps, log) in logs.items())
    assert decode_closed_logs(data) == logs


@given(st.data())
def test_a_file_that_is_torn_or_damaged_is_refused(data: st.DataObject) -> None:
    log = ClosedLog(None, ClosedSegments([(0, 100)], 5, 3, 4), [5], [], b"state")
    whole = encode_closed_logs([(("topic", 0), Stamps(1, 2), log)])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptClosedLogs):
        decode_closed_logs(whole[:cut])
    damaged = bytearray(whole)
    damaged[cut] ^= 1
    with pytest.raises(CorruptClosedLogs):
        decode_closed_logs(bytes(damaged))


def test_a_name_that_is_no_text_is_damage_whatever_the_checksum_says() -> None:
    log = ClosedLog(None, ClosedSegments([(0, 100)], 5, 3, 4), [5], [], b"state")
    whole = encode_closed_logs([(("topic", 0), Stamps(1, 2), log)])
    body = whole[10:].replace(b"topic", b"\xfftopi")
    with pytest.raises(CorruptClosedLogs):
        decode_closed_logs(whole[:6] + crc32c(body).to_bytes(4, "big") + body)


def test_the_start_after_a_clean_stop_opens_nothing_of_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, before = stopped()
    opened: list[str] = []
    open_file = disk.open

    def noted(path: str, *, create: bool = False) -> File:
        opened.append(path)
        return open_file(path, create=create)

    monkeypatch.setattr(disk, "open", noted)
    log = Process(disk).open()
    assert not [path for path in opened if "topic-0" in path]
    assert log.state == before.state
    assert (log.log_start_offset, log.high_watermark) == (0, 31)
    assert list(log.ledger.batches.iterate(0)) == list(before.ledger.batches.iterate(0))


def test_a_log_goes_on_as_if_it_had_never_been_closed() -> None:
    process = Process(SimulatedDisk())
    untouched = process.open()
    process.append(untouched, 5, timestamp_ms=NOW_MS + 5)
    process.append(untouched, 40)
    kept = process.stop()
    process = Process(SimulatedDisk())
    process.append(process.open(), 5, timestamp_ms=NOW_MS + 5)
    for _ in range(8):
        process = Process(process.stop())
        log = process.open()
        process.append(log, 5)
    disk = process.stop()
    names, wanted = (
        [name for name in each.list("/data/topic-0") if name.endswith((".log", ".index"))]
        for each in (disk, kept)
    )
    assert names == wanted
    assert len(names) > 4
    for name in names:
        one, other = (each.open(f"/data/topic-0/{name}") for each in (disk, kept))
        assert one.read(10_000, 0) == other.read(10_000, 0), name
    assert asyncio.run(log.reader.max_timestamp_offset()) == asyncio.run(
        untouched.reader.max_timestamp_offset()
    )


def test_what_somebody_else_has_changed_is_found_out() -> None:
    disk, before = stopped(count=5)
    last = [name for name in disk.list("/data/topic-0") if name.endswith(".log")][-1]
    file = disk.open(f"/data/topic-0/{last}")
    file.truncate(file.size() - 10)
    process = Process(disk)
    assert process.directory.clean_stop.missing_segments == {}, "it is told once"
    assert process.open().log_end_offset < before.log_end_offset


def test_segments_that_are_gone_are_named() -> None:
    disk, _ = stopped(count=30)
    names = [name for name in disk.list("/data/topic-0") if name.endswith(".log")]
    disk.unlink(f"/data/topic-0/{names[0]}")
    process = Process(disk)
    assert process.directory.clean_stop.missing_segments == {("topic", 0): [names[0]]}
    assert process.open().log_start_offset == int(names[1].removesuffix(".log"))


def test_a_name_that_has_come_or_gone_makes_the_start_look() -> None:
    disk, before = stopped(count=5)
    disk.open("/data/topic-0/00000000000000000000.txnindex.deleted", create=True)
    process = Process(disk)
    assert process.open().state == before.state
    assert not [name for name in disk.list("/data/topic-0") if name.endswith(".deleted")]


def test_nothing_is_believed_after_a_crash() -> None:
    disk, _ = stopped(count=5)
    process = Process(disk)
    assert process.directory.clean_stop.closed
    log = process.open()
    process.append(log, 3)
    for after in (disk.kill(Random(1)), disk.crash(Random(2))):
        again = Process(after)
        assert not again.directory.clean_stop.closed
        assert not after.exists(f"/data/{CLOSED_LOGS}")
        assert again.open().state == log.state
