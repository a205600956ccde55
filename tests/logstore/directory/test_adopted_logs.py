"""A directory without partition.metadata: what is acknowledged there survives a power loss."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from logstore.disk.checkpoints import CLEAN_SHUTDOWN, PARTITION_METADATA, encode_clean_shutdown
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk
from wire.records import place

TOPIC_ID = UUID(int=7)
#: At or above the epoch of the broker that adopts the directory.
THEIR_EPOCH = 5


class Process(LogProcess):
    """One partition that another broker wrote and left by a clean stop."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.begin(disk, LogConfig())

    def open(self) -> PartitionLog:
        return self.directory.open("topic", 0, TOPIC_ID, leader_epoch=THEIR_EPOCH - 1)


def foreign_directory(seed: int) -> SimulatedDisk:
    disk = SimulatedDisk(seed=seed)
    disk.make_directory("/data/topic-0")
    batch = batch_of(b"theirs")
    place(batch, 0, THEIR_EPOCH)
    for name, data in (
        ("topic-0/00000000000000000000.log", batch),
        (CLEAN_SHUTDOWN, encode_clean_shutdown()),
    ):
        file = disk.open(f"/data/{name}", create=True)
        file.write([data], 0)
        file.close()
    disk.sync_all()
    return disk


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_what_an_adopted_log_has_acknowledged_survives_a_power_loss(seed: int, starts: int) -> None:
    process = Process(foreign_directory(seed))
    for _ in range(starts - 1):
        process.open()
        process.stop()
        process = Process(process.disk)
    log = process.open()
    for _ in range(4):
        log.append(log.check(batch_of(b"ours"), NOW_MS))
        process.executor.run()
    assert log.high_watermark == 5
    again = Process(process.disk.crash(Random(seed))).open()
    assert again.log_end_offset == 5


def test_the_first_append_writes_the_topic_id_that_is_missing() -> None:
    process = Process(foreign_directory(0))
    log = process.open()
    log.append(log.check(batch_of(b"ours"), NOW_MS))
    assert process.disk.exists(f"/data/topic-0/{PARTITION_METADATA}")
