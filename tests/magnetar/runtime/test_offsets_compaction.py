"""Committed offsets through compaction: what a replay finds is what was committed, always.

Random commits, plain and in transactions of either version, deletions, compactions, and ends of
the process in between. The last record of a key is not the last commit of it where a transaction
was aborted, or committed after a newer one.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey, OffsetRecord
from coordinator.groups.shard import GroupShard
from logstore.cleaner.run import OffsetMapLimits
from logstore.partition.log_config import LogConfig
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.runtime.group_shards import RECORD_FORMAT, RunningGroupShard
from tests.logstore.compaction import clean
from tests.logstore.log_process import LogProcess
from tests.logstore.simulated_disk import SimulatedDisk
from tests.soak import SOAK

CONFIG = LogConfig(
    segment_bytes=1_000,
    index_interval_bytes=200,
    snapshot_interval_bytes=700,
    delete_retention_ms=20,
    cleanup_policy=frozenset({"compact"}),
)
SMALL_MAP = OffsetMapLimits(buffer_bytes=24 * 6, load_factor=0.5)
KEYS = [OffsetKey(group, "t", index) for group in ("g", "h") for index in range(3)]
LIMITS = GroupLimits()


class History(LogProcess):
    """One shard, driven by chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        self.cleanings = 0
        self.epochs = [0, 0, 0]
        self.disk = SimulatedDisk(seed=seed)
        self.start()

    def start(self) -> None:
        self.begin(self.disk, CONFIG, now_ms=lambda: self.now_ms)
        self.log = self.directory.open("__consumer_offsets", 0)
        self.shard = self.replayed()

    def replayed(self) -> RunningGroupShard:
        shard = RunningGroupShard(self.log, GroupShard(LIMITS), RECORD_FORMAT)
        shard.replay()
        return shard

    def step(self) -> None:
        self.now_ms += self.random.randrange(4)
        self.random.choices(
            [self.commit, self.stage, self.end, self.delete, self.settle, self.clean, self.restart],
            [6, 6, 4, 1, 3, 2, 1],
        )[0]()

    def records(self) -> list[OffsetRecord]:
        keys = self.random.sample(KEYS, self.random.randint(1, 3))
        offset = CommittedOffset(self.random.randrange(10**6), committed_ms=self.now_ms)
        return [OffsetRecord(key, offset) for key in keys]

    def commit(self) -> None:
        self.shard.append(self.records(), self.now_ms)

    def stage(self) -> None:
        producer = self.random.randrange(3)
        self.shard.append_pending(self.records(), producer, self.epochs[producer], self.now_ms)

    def end(self) -> None:
        producer = self.random.randrange(3)
        version = self.random.choice([1, 2])
        if version == 2:
            self.epochs[producer] += 1
        commit = self.random.random() < 0.6
        marker = TransactionMarker(producer, self.epochs[producer], 1, commit, version)
        self.shard.append_marker(marker, self.now_ms)

    def delete(self) -> None:
        group = self.random.choice(["g", "h"])
        self.shard.append(self.shard.state.offsets.deletion_of_group(group), self.now_ms)

    def settle(self) -> None:
        self.executor.run()

    def clean(self) -> None:
        limits = self.random.choice([None, SMALL_MAP])
        self.cleanings += clean(self.log, self.now_ms, self.executor.run, limits) is not None
        self.check()

    def restart(self) -> None:
        self.executor.run()
        if self.random.random() < 0.5:
            asyncio.run(self.directory.close())
            self.disk = self.disk.kill(self.random)
        else:
            self.disk = self.disk.crash(self.random)
        before = story(self.shard)
        self.start()
        assert story(self.shard) == before

    def check(self) -> None:
        assert story(self.replayed()) == story(self.shard)


def story(shard: RunningGroupShard) -> Any:
    """What is committed and pending, each with its offset in the log."""
    offsets = shard.state.offsets
    return offsets._committed, offsets.pending


@pytest.mark.parametrize("part", range(4))
def test_a_replay_of_what_compaction_left_finds_the_same_offsets(part: int) -> None:
    cleanings = 0
    for number in range(12 * SOAK):
        history = History(seed=4 * number + part)
        for _ in range(150):
            history.step()
        history.settle()
        history.check()
        cleanings += history.cleanings
    assert cleanings > 12
