"""A directory of partitions: found again after any stop, one process's alone, Kafka's layout."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.directory.data_directory import DirectoryInUse, ForeignDirectory, FoundPartition
from logstore.directory.log_directory import LogDirectory
from logstore.disk.barriers import Procedure
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, StorageFailure
from logstore.disk.room import NoRoom
from logstore.partition import state_recovery
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.state import PartitionState
from logstore.partition.state_recovery import replaying
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.ledger import Ledger
from logstore.sync.group_commit import GroupCommit
from tests.logstore.partitions import batch_of, delete_records
from tests.logstore.simulated_disk import SimulatedDisk
from wire.error_code import ErrorCode
from wire.errors import KafkaError

TOPIC_ID = uuid.UUID("10d5dcac-a7bc-43fe-945c-5f371153a5e4")
NOW_MS = 1_000


class Opened:
    """A directory on the real disk, and the process that has it open."""

    def __init__(self, path: Path, durability: Durability = Durability.FSYNC) -> None:
        self.failures: list[StorageFailure] = []
        self.files = DiskFiles(str(path.parent))
        self.commit = GroupCommit(self.files, durability, on_failure=self.failures.append)
        self.directory = LogDirectory(
            str(path), self.files, self.commit, LogConfig(), steady_ms=lambda: NOW_MS
        )

    async def stop(self) -> None:
        await self.directory.close()
        self.end()

    def end(self) -> None:
        self.directory.abandon()
        self.commit.close()
        self.files.close()


async def write(log: PartitionLog, value: bytes = b"x", **fields: int | bool) -> int:
    appended = log.append(log.check(batch_of(value, **fields), NOW_MS))  # type: ignore[arg-type]  # by name
    await log.durable(appended.end_offset)
    return appended.base_offset


async def test_an_empty_partition_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "data")
    for partition in range(50):
        opened.directory.open("topic", partition, TOPIC_ID)
    assert not list((tmp_path / "data").glob("topic-*"))
    await opened.stop()
    assert not list((tmp_path / "data").glob("topic-*"))


async def test_a_checkpoint_looks_only_at_logs_whose_recovery_point_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log of 9,000 that rolled was a step of 5 ms, each second."""
    opened = Opened(tmp_path)
    config = LogConfig(segment_bytes=100)
    logs = [opened.directory.open("topic", index, TOPIC_ID, config) for index in range(3)]
    seen: list[PartitionLog] = []

    def noted(log: PartitionLog) -> int:
        seen.append(log)
        return log.ledger.recovery_point

    monkeypatch.setattr(PartitionLog, "recovery_point", property(noted))
    for _ in range(2):
        await write(logs[1])
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    async with asyncio.timeout(10):
        while not checkpoint.exists():
            await asyncio.sleep(0.05)
    assert {*seen} == {logs[1]}
    assert "topic 1 1\n" in checkpoint.read_text()
    await opened.stop()


async def test_a_new_partition_has_no_state_to_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request makes thousands, and to look for their state took half of its time."""
    recovered: list[Ledger] = []

    def noted(ledger: Ledger, state: PartitionState, steady_ms: int) -> Procedure[tuple[int, int]]:
        recovered.append(ledger)
        return replaying(ledger, state, steady_ms)

    monkeypatch.setattr(state_recovery, "replaying", noted)
    first = Opened(tmp_path)
    log = first.directory.open("topic", 0, TOPIC_ID)
    assert not recovered
    assert await write(log, producer_id=1, epoch=0, sequence=0) == 0
    first.end()
    second = Opened(tmp_path)
    log = second.directory.open("topic", 0, TOPIC_ID)
    assert recovered == [log.ledger] and [*dict(log.producers)] == [1]
    await second.stop()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_what_was_acknowledged_is_there_after_a_stop(tmp_path: Path, is_clean: bool) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 3, TOPIC_ID)
    await write(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    aborted = log.append_marker(TransactionMarker(1, 0, 0, commit=False), NOW_MS)
    await log.durable(aborted.end_offset)
    await write(log, producer_id=2, epoch=0, sequence=0, transactional=True)
    state = log.state
    if is_clean:
        await opened.stop()
    else:
        opened.end()
    opened = Opened(tmp_path)
    assert opened.directory.clean_stop.was_clean == is_clean
    assert opened.directory.found_partitions() == [FoundPartition("topic", 3, TOPIC_ID)]
    log = opened.directory.open("topic", 3, TOPIC_ID)
    assert log.state == state
    assert (log.high_watermark, log.last_stable_offset) == (3, 2)
    assert await write(log) == 3
    await opened.stop()


async def test_the_files_are_kafkas(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.directory.claim(cluster_id="oV5PE5jOTjizrVpbUyh6fQ", node_id=1)
    log = opened.directory.open("topic", 0, TOPIC_ID, leader_epoch=4)
    await write(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    aborted = log.append_marker(TransactionMarker(1, 0, 0, commit=False), NOW_MS)
    await log.durable(aborted.end_offset)
    await opened.stop()
    assert sorted(path.name for path in (tmp_path / "topic-0").iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000000.txnindex",
        "00000000000000000002.snapshot",
        "00000000000000000002.state",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert (tmp_path / "topic-0/leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\ntopic 0 2\n"
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert "version=1" in (tmp_path / "meta.properties").read_text()


async def test_a_directory_is_one_process_alone(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    with pytest.raises(DirectoryInUse):
        Opened(tmp_path)
    await opened.stop()
    await Opened(tmp_path).stop()


async def test_a_directory_keeps_its_owner(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    assert opened.directory.identity() == {}
    opened.directory.claim(cluster_id="a", node_id=1)
    before = opened.directory.identity()
    opened.directory.claim(cluster_id="a", node_id=1)
    assert opened.directory.identity() == before
    for cluster_id, node_id in (("b", 1), ("a", 2)):
        with pytest.raises(ForeignDirectory):
            opened.directory.claim(cluster_id=cluster_id, node_id=node_id)
    await opened.stop()


async def test_the_leader_epoch_never_goes_back(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await write(opened.directory.open("topic", 0, TOPIC_ID, leader_epoch=5))
    await opened.stop()
    (tmp_path / "topic-0/leader-epoch-checkpoint").write_bytes(b"")
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, leader_epoch=2)
    assert log.leader_epoch == 5
    await opened.stop()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID, leader_epoch=8)
    assert log.end_offset_for_epoch(8) == (8, 1)
    assert log.end_offset_for_epoch(9) == (-1, -1)
    await write(log)
    assert log.end_offset_for_epoch(6) == (5, 1)
    assert log.end_offset_for_epoch(8) == (8, 2)
    await opened.stop()


async def test_a_deleted_partition_is_gone_and_its_waiters_are_told(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    heard: list[bool] = []
    log.reader.subscribe(lambda: heard.append(log.is_gone))
    appended = log.append(log.check(batch_of(b"never durable"), NOW_MS))
    waiting = asyncio.ensure_future(log.durable(appended.end_offset))
    await asyncio.sleep(0)
    await opened.directory.delete([log])
    with pytest.raises(KafkaError) as refused:
        await waiting
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert heard == [True]
    attempts: tuple[Callable[[], object], ...] = (
        lambda: log.append(log.check(batch_of(b"late"), NOW_MS)),
        lambda: log.reader.read(0, 100, Isolation.READ_COMMITTED),
    )
    for attempt in attempts:
        with pytest.raises(KafkaError) as refused:
            attempt()
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [path.name[-7:] for path in tmp_path.glob("topic-*")] == ["-delete"]
    again = opened.directory.open("topic", 0, uuid.uuid4())
    assert await write(again) == 0
    await opened.stop()


async def test_a_deletion_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await write(opened.directory.open("topic", 0, TOPIC_ID))
    await opened.stop()
    (tmp_path / "topic-0").rename(tmp_path / f"topic-0.{uuid.uuid4().hex}-delete")
    opened = Opened(tmp_path)
    assert opened.directory.found_partitions() == []
    opened.directory.sweep()
    async with asyncio.timeout(10):
        while list(tmp_path.glob("topic-*")):
            await asyncio.sleep(0.01)
    await opened.stop()


async def test_a_directory_of_another_topic_id_is_set_aside_not_read(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await write(opened.directory.open("topic", 0, TOPIC_ID))
    await opened.stop()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, uuid.uuid4())
    assert log.log_end_offset == 0
    assert len(list(tmp_path.glob("topic-0.*-stray"))) == 1
    assert await write(log) == 0
    await opened.stop()


async def test_deleted_records_stay_deleted_after_kill(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    for _ in range(3):
        await write(log)
    await opened.directory.persist_start_offsets([(log, 2)])
    delete_records(log, 2)
    opened.end()
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    assert (log.log_start_offset, log.log_end_offset) == (2, 3)
    await opened.stop()


async def test_torn_checkpoints_cost_time_and_nothing_else(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log, producer_id=1, epoch=0, sequence=0)
    state = log.state
    opened.end()
    for name in (
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "topic-0/leader-epoch-checkpoint",
        "topic-0/partition.metadata",
    ):
        (tmp_path / name).write_bytes(b"\0\0")
    opened = Opened(tmp_path)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    assert log.state == state
    await opened.stop()
    assert (tmp_path / "topic-0/leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


async def test_many_partitions_deleted_together_cost_as_many_syncs_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path)
    logs = [opened.directory.open("topic", partition, TOPIC_ID) for partition in range(4)]
    for log in logs[:3]:
        await write(log)
    synced: list[str] = []
    sync_directory = opened.files.sync_directory

    def counted(path: str) -> None:
        synced.append(path)
        sync_directory(path)

    monkeypatch.setattr(opened.files, "sync_directory", counted)
    await opened.directory.delete(logs[:1])
    for_one = len(synced)
    await opened.directory.delete(logs[1:])
    assert len(synced) == 2 * for_one
    assert [path.name[-7:] for path in tmp_path.glob("topic-*")] == 3 * ["-delete"]
    await opened.stop()


async def test_a_name_is_free_at_once_however_many_partitions_are_still_leaving(
    tmp_path: Path,
) -> None:
    opened = Opened(tmp_path)
    config = LogConfig(file_delete_delay_ms=0)
    logs = [opened.directory.open("topic", partition, TOPIC_ID, config) for partition in range(40)]
    for log in logs[-2:]:
        await write(log)
    leaving = asyncio.ensure_future(opened.directory.delete(logs))
    await asyncio.sleep(0)
    assert all(log.is_gone for log in logs)
    assert (tmp_path / "topic-39").exists()
    again = opened.directory.open("topic", 39, uuid.uuid4())
    assert await write(again, b"new") == 0
    await leaving
    assert await write(again, b"newer") == 1
    async with asyncio.timeout(10):
        while list(tmp_path.glob("topic-*-delete")):
            await asyncio.sleep(0.01)
    assert [path.name for path in tmp_path.glob("topic-*")] == ["topic-39"]
    await opened.stop()


async def test_in_memory_nothing_is_written(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "data", Durability.MEMORY)
    opened.directory.claim(cluster_id="a", node_id=1)
    log = opened.directory.open("topic", 0, TOPIC_ID)
    await write(log)
    assert log.high_watermark == 1
    assert delete_records(log, -1) == 1
    await opened.directory.delete([log])
    await opened.stop()
    assert not (tmp_path / "data").exists()


async def test_a_full_disk_refuses_a_batch_and_goes_on_once_there_is_room() -> None:
    disk = SimulatedDisk()
    failures: list[StorageFailure] = []

    def start() -> LogDirectory:
        commit = GroupCommit(disk, Durability.FSYNC, on_failure=failures.append)
        return LogDirectory("/data", disk, commit, LogConfig(), steady_ms=lambda: NOW_MS)

    directory = start()
    log = directory.open("topic", 0)
    await write(log, b"kept")
    disk.space_left = 40
    for _ in range(2):
        with pytest.raises(NoRoom):
            await write(log, b"refused")
    disk.space_left = None
    await write(log, b"kept too")
    assert not failures
    await directory.close()
    directory = start()
    assert directory.clean_stop.was_clean
    log = directory.open("topic", 0)
    assert (log.high_watermark, log.log_end_offset) == (2, 2)
    await directory.close()


async def test_a_failing_sync_is_final() -> None:
    disk = SimulatedDisk()
    failures: list[StorageFailure] = []
    commit = GroupCommit(disk, Durability.FSYNC, on_failure=failures.append)
    directory = LogDirectory("/data", disk, commit, LogConfig(), steady_ms=lambda: NOW_MS)
    log = directory.open("topic", 0)
    await write(log)
    for operation in ("sync", "sync_all"):
        disk.fail(operation, errno.EIO)
    with pytest.raises(StorageFailure):
        await write(log)
    assert log.high_watermark == 1
    assert len(failures) == 1
    await directory.close()
    assert not disk.exists("/data/.kafka_cleanshutdown")


async def test_segments_that_go_keep_their_files_for_the_delay_and_lose_their_names(
    tmp_path: Path,
) -> None:
    opened = Opened(tmp_path)
    config = LogConfig(segment_bytes=130, file_delete_delay_ms=60)
    log = opened.directory.open("topic", 0, TOPIC_ID, config)
    for _ in range(6):
        await write(log, b"x" * 50)
    delete_records(log, 4)
    names = {path.name for path in (tmp_path / "topic-0").iterdir()}
    assert names >= {f"{base:020d}.log.deleted" for base in range(4)}
    assert not names & {f"{base:020d}.log" for base in range(4)}
    async with asyncio.timeout(10):
        while list((tmp_path / "topic-0").glob("*.deleted")):
            await asyncio.sleep(0.01)
    await opened.stop()


async def test_what_waits_for_its_delay_at_the_end_is_deleted_by_the_next_start(
    tmp_path: Path,
) -> None:
    for is_clean in (True, False):
        opened = Opened(tmp_path)
        log = opened.directory.open("topic", 0, TOPIC_ID, LogConfig(segment_bytes=130))
        for _ in range(4):
            await write(log, b"x" * 50)
        start_offset = log.log_end_offset - 2
        await opened.directory.persist_start_offsets([(log, start_offset)])
        delete_records(log, start_offset)
        state = log.state
        assert list((tmp_path / "topic-0").glob("*.deleted"))
        if is_clean:
            await opened.stop()
        else:
            opened.end()
        opened = Opened(tmp_path)
        log = opened.directory.open("topic", 0, TOPIC_ID, LogConfig(segment_bytes=130))
        assert (log.state, log.log_start_offset) == (state, start_offset)
        assert not list((tmp_path / "topic-0").glob("*.deleted"))
        await opened.stop()
