"""`flush.messages` and `flush.ms`: with page-cache durability so much is on the disk after all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from logstore.disk.durability import Durability
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk

CONFIG = LogConfig(segment_bytes=400)


class Process(LogProcess):
    """One partition, its appends in the page cache."""

    def __init__(
        self, disk: SimulatedDisk, config: LogConfig, durability: Durability = Durability.PAGE_CACHE
    ) -> None:
        self.disk = disk
        self.begin(disk, config, durability)
        self.log = self.directory.open("topic", 0)

    def append(self) -> None:
        self.log.append(self.log.check(batch_of(b"x" * 60), NOW_MS))
        self.executor.run()
        assert self.log.high_watermark == self.log.log_end_offset

    def after_power_loss(self, seed: int) -> PartitionLog:
        return Process(self.disk.crash(Random(seed)), CONFIG).log


@pytest.mark.parametrize("flush_messages", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_no_more_records_are_lost_than_may_be_unflushed(flush_messages: int, seed: int) -> None:
    process = Process(SimulatedDisk(seed=seed), replace(CONFIG, flush_messages=flush_messages))
    for count in range(1, 25):
        process.append()
        kept = process.after_power_loss(seed + count)
        assert kept.log_end_offset > count - flush_messages
        assert [header.base_offset for header, _ in kept.ledger.batches.iterate(0)] == list(
            range(kept.log_end_offset)
        )


def test_nothing_is_synced_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(SimulatedDisk(), replace(CONFIG, flush_messages=4, segment_bytes=10_000))
    synced: list[int] = []
    before = process.disk.before

    def noted(operation: str) -> None:
        if operation == "sync_all":
            synced.append(process.log.log_end_offset)
        before(operation)

    monkeypatch.setattr(process.disk, "before", noted)
    for _ in range(13):
        process.append()
    assert synced == [4, 8, 12]


def test_a_flush_covers_everything_before_it_and_there_is_one_where_it_is_due() -> None:
    process = Process(SimulatedDisk(), CONFIG)
    assert not process.log.ledger.flush()
    for _ in range(20):
        process.append()
    assert process.log.ledger.flush()
    process.executor.run()
    assert not process.log.ledger.flush()
    for seed in range(5):
        assert process.after_power_loss(seed).log_end_offset == 20


@pytest.mark.parametrize("can_sync_all", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_after_a_clean_stop_everything_is_on_the_disk(can_sync_all: bool, seed: int) -> None:
    process = Process(SimulatedDisk(can_sync_all=can_sync_all), CONFIG)
    for _ in range(20):
        process.append()
    asyncio.run(process.directory.close())
    again = Process(process.disk.crash(Random(seed)), CONFIG)
    assert again.directory.clean_stop.was_clean
    batches = again.log.ledger.batches.iterate(0)
    assert [header.base_offset for header, _ in batches] == list(range(20))


def test_a_new_setting_acts_from_the_next_record_on() -> None:
    process = Process(SimulatedDisk(), CONFIG)
    for _ in range(5):
        process.append()
    process.log.reconfigure(replace(CONFIG, flush_messages=1))
    process.append()
    for seed in range(5):
        assert process.after_power_loss(seed).log_end_offset == 6


def test_on_the_disk_already_there_is_nothing_to_flush() -> None:
    process = Process(SimulatedDisk(), replace(CONFIG, flush_messages=1), Durability.FSYNC)
    process.append()
    assert process.after_power_loss(1).log_end_offset == 1
