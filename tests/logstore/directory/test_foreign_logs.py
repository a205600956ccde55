"""Logs that Kafka has compacted: the offsets that are missing in them end them at no start."""

from __future__ import annotations

from random import Random

import pytest

from logstore.directory.data_directory import FoundPartition
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk
from wire.records import place

#: Segments by base offset, and the offsets that are left in each.
LEFT = {0: [2], 10: [11], 20: [20, 24]}


class Process(LogProcess):
    """One partition that another program wrote, on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.begin(disk, LogConfig(segment_bytes=300))

    def open(self) -> PartitionLog:
        return self.directory.open("topic", 0)


def adopted(seed: int) -> Process:
    disk = SimulatedDisk(seed=seed)
    disk.make_directory("/data/topic-0")
    for base_offset, offsets in LEFT.items():
        batches = [batch_of(b"x" * 50) for _ in offsets]
        for offset, batch in zip(offsets, batches, strict=True):
            place(batch, offset, 0)
        file = disk.open(f"/data/topic-0/{base_offset:020d}.log", create=True)
        file.write(batches, 0)
        file.close()
    disk.sync_all()
    process = Process(disk)
    process.directory.trust_foreign([FoundPartition("topic", 0, None)])
    return process


def offsets_of(log: PartitionLog) -> list[int]:
    return [header.base_offset for header, _ in log.ledger.batches.iterate(0)]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_while_recovery_points_are_written_ends_no_log_at_a_gap(seed: int) -> None:
    process = adopted(seed)
    log = process.open()
    assert offsets_of(log) == [2, 11, 20, 24]
    for _ in range(6):
        log.append(log.check(batch_of(b"y" * 60), NOW_MS))
        process.executor.run()
    process.timers.run()
    again = Process(process.disk.crash(Random(seed))).open()
    assert again.high_watermark == log.high_watermark
    assert offsets_of(again) == offsets_of(log)
