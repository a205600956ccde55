"""How few files a new partition has, and that the others are made before they are needed."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest

from logstore.disk.checkpoints import decode_leader_epochs
from logstore.disk.room import NoRoom
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk

TOPIC_ID = UUID(int=7)
PATH = "/data/topic-0"
CHECKPOINT = "leader-epoch-checkpoint"
CONFIG = LogConfig(segment_bytes=300)


class Process(LogProcess):
    """A partition on a simulated disk."""

    def __init__(self, disk: SimulatedDisk, leader_epoch: int) -> None:
        self.disk = disk
        self.begin(disk, CONFIG)
        self.log: PartitionLog = self.directory.open(
            "topic", 0, TOPIC_ID, leader_epoch=leader_epoch
        )

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.append(batch_of(b"x" * 60))

    def append(self, batch: bytearray) -> None:
        self.log.append(self.log.check(batch, NOW_MS))
        self.executor.run()

    def stop(self) -> None:
        asyncio.run(self.directory.close())

    def epochs(self) -> list[tuple[int, int]] | None:
        """Return what the checkpoint says; None: there is none."""
        return stored_epochs(self.disk)


def stored_epochs(disk: SimulatedDisk) -> list[tuple[int, int]] | None:
    if CHECKPOINT not in disk.list(PATH):
        return None
    file = disk.open(f"{PATH}/{CHECKPOINT}")
    try:
        return decode_leader_epochs(file.read(file.size(), 0))
    finally:
        file.close()


def test_a_new_partition_costs_two_files_beside_its_directory() -> None:
    process = Process(SimulatedDisk(), leader_epoch=4)
    process.write(2)
    assert process.disk.list(PATH) == [f"{0:020d}.log", "partition.metadata"]


def test_the_checkpoint_is_made_when_the_first_segment_ends() -> None:
    process = Process(SimulatedDisk(), leader_epoch=4)
    process.write(3)
    assert len(process.log.ledger.segments.base_offsets) > 1
    assert process.epochs() == [(4, 0)]


def test_the_checkpoint_is_made_when_another_leader_writes() -> None:
    first = Process(SimulatedDisk(), leader_epoch=4)
    first.write(2)
    second = Process(first.disk.kill(Random(0)), leader_epoch=5)
    second.write()
    assert second.epochs() == [(4, 0), (5, 2)]


def test_the_checkpoint_tells_of_a_leader_whose_first_batch_found_no_room() -> None:
    """Room is made by deleting records, which writes the checkpoint without that leader."""
    disk = SimulatedDisk()
    first = Process(disk, leader_epoch=4)
    first.append(batch_of(b"a", b"b"))
    first.stop()
    second = Process(disk, leader_epoch=5)
    disk.space_left = 30  # The checkpoint has 12 bytes.
    with pytest.raises(NoRoom):
        second.write()
    disk.space_left = None
    assert second.epochs() == [(4, 0), (5, 2)]
    second.executor.run()
    second.persist_start(second.log, 1)
    second.log.advance_start(1)
    second.write()
    second.stop()
    assert second.epochs() == [(4, 1), (5, 2)]


def test_a_start_after_a_kill_makes_the_checkpoint() -> None:
    first = Process(SimulatedDisk(), leader_epoch=4)
    first.write(2)
    assert first.epochs() is None
    assert Process(first.disk.kill(Random(0)), leader_epoch=5).epochs() == [(4, 0)]


@pytest.mark.parametrize("can_sync_all", [True, False])
def test_a_clean_stop_leaves_a_whole_checkpoint_wherever_power_is_lost(can_sync_all: bool) -> None:
    """Kafka reads the checkpoint after a clean stop, and does not start with a torn one."""
    point, is_lost = 0, True
    while is_lost:
        process = Process(SimulatedDisk(can_sync_all=can_sync_all), leader_epoch=4)
        process.write(2)
        process.disk.lose_power_after(point)
        try:
            process.stop()
            is_lost = False
        except PowerLost:
            process.directory.abandon()
        for seed in range(5):
            disk = process.disk.crash(Random(point * 5 + seed))
            if ".kafka_cleanshutdown" in disk.list("/data"):
                assert stored_epochs(disk) == [(4, 0)]
            else:
                assert is_lost
        again = Process(process.disk.crash(Random(point)), leader_epoch=5)
        assert again.log.end_offset_for_epoch(4) == (4, 2)
        point += 1
    assert point > 5
