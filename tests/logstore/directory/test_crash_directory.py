"""Partitions that are written together, deleted and made again, through power losses and kills.

At any operation of the disk, also of the starts in between. Nothing that was visible is lost,
nothing of a former partition comes back in the next of its name, and what is atomic is there with
everything that was appended before it, or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest

import logstore.directory.log_directory
import logstore.segments.unsynced
import logstore.sync.group_commit
from logstore.directory.journal_replay import Replayed
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.file_ledger import FileLedger
from logstore.sync.journal import Journal
from tests.logstore.compaction import perform
from tests.logstore.journal_process import append_at_once
from tests.logstore.log_process import NOW_MS, LogProcess
from tests.logstore.partitions import delete_records
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.soak import SOAK
from wire.records import SimpleRecord, iterate_records

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=200,
    segment_index_bytes=800,
    snapshot_interval_bytes=400,
    file_delete_delay_ms=0,
)
TOPICS = ("a", "b", "c")
HISTORIES = 150


@dataclass(eq=False)
class Partition:
    """What its writer knows of one: every append is one offset."""

    topic_id: UUID
    #: By offset; None is a marker.
    values: list[bytes | None] = field(default_factory=list)
    highest_seen: int = 0
    deleted_before: int = 0


class Appended(NamedTuple):
    partition: Partition
    offset: int
    is_atomic: bool


class World(LogProcess):
    """A directory of three partitions on a simulated disk, and the process that has it open."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.partitions = {topic: Partition(UUID(int=n)) for n, topic in enumerate(TOPICS, 1)}
        self.logs: dict[str, PartitionLog] = {}
        #: Of this process, in order.
        self.appended: list[Appended] = []
        self.starts = self.made = len(TOPICS)

    def start(self) -> None:
        self.starts += 1
        self.begin(self.disk, CONFIG)
        known = {one.topic_id for one in self.partitions.values()}
        found = self.directory.found_partitions()
        self.directory.remove([one for one in found if one.topic_id not in {None, *known}])
        for topic in TOPICS:
            self.open(topic)
        self.directory.sweep()

    def open(self, topic: str) -> None:
        topic_id = self.partitions[topic].topic_id
        self.logs[topic] = self.directory.open(topic, 0, topic_id, CONFIG, self.starts)

    def act(self) -> None:
        """Do something, and look at what is visible."""
        topic = self.random.choice(TOPICS)
        acts: tuple[tuple[int, Callable[[], object]], ...] = (
            (25, partial(self.append, topic)),
            (15, partial(self.append, topic, is_transactional=True)),
            (20, self.decide),
            (25, self.step),
            (4, lambda: self.executor.run()),
            (3, lambda: self.timers.run()),
            (4, partial(self.delete_records, topic)),
            (4, partial(self.make_again, topic)),
        )
        self.random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
        for name, log in self.logs.items():
            partition = self.partitions[name]
            partition.highest_seen = max(partition.highest_seen, log.high_watermark)

    def append(self, topic: str, *, is_transactional: bool = False) -> None:
        size = self.random.choice((1, 1, 20, 200, 700))
        value = b"%d " % self.random.getrandbits(40) + bytes(size)
        self._note(topic, value, is_atomic=False)
        producer = 0 if is_transactional else -1
        self.logs[topic].append_records(
            [SimpleRecord(b"k", value, NOW_MS)],
            producer_id=producer,
            producer_epoch=producer,
            is_transactional=is_transactional,
        )

    def decide(self) -> None:
        """Append to one log, then, in the same step, markers to some."""
        topics = self.random.sample(TOPICS, self.random.randint(1, 3))
        if self.random.random() < 0.7:
            self.append(self.random.choice(TOPICS))
        for topic in topics:
            self._note(topic, None, is_atomic=True)
            marker = TransactionMarker(0, 0, self.starts, self.random.random() < 0.5, 1)
            self.logs[topic].append_marker(marker, NOW_MS)

    def _note(self, topic: str, value: bytes | None, *, is_atomic: bool) -> None:
        """Before it is appended: power may go in the middle."""
        values = self.partitions[topic].values
        assert self.logs[topic].log_end_offset == len(values)
        self.appended.append(Appended(self.partitions[topic], len(values), is_atomic))
        values.append(value)

    def step(self) -> None:
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            self.executor.step()

    def delete_records(self, topic: str) -> None:
        log = self.logs[topic]
        before = min(log.high_watermark, log.log_start_offset + self.random.randint(1, 9))
        self.persist_start(log, before)
        delete_records(log, before)
        self.partitions[topic].deleted_before = before

    def make_again(self, topic: str) -> None:
        self.made += 1
        del self.partitions[topic]
        log = self.logs.pop(topic)
        # The catalog's is the first change.
        self.partitions[topic] = Partition(UUID(int=self.made))
        perform(self.directory.delete([log]))
        self.directory.free(topic, 1)
        self.open(topic)

    def end(self) -> None:
        """Come to an end in one way or another, and start again."""
        ending = self.random.choice(("power", "power", "power", "kill", "kill", "clean"))
        if ending == "power":
            self.disk.lose_power_after(self.random.randrange(self.random.choice((40, 150, 400))))
        with contextlib.suppress(PowerLost):
            for _ in range(self.random.randint(3, 60)):
                self.act()
            if ending == "clean":
                self.stop()
        assert not self.failures
        self.disk.keep_power()
        self.disk = getattr(self.disk, "crash" if ending == "power" else "kill")(self.random)
        while True:
            if ending != "clean" and self.random.random() < 0.3:
                self.disk.lose_power_after(self.random.randrange(60))
            with contextlib.suppress(PowerLost):
                self.start()
                break
            self.disk = self.disk.crash(self.random)
        self.disk.keep_power()
        self.check()

    def check(self) -> None:
        """Compare what is there with what was appended, and take it from there."""
        for topic, log in self.logs.items():
            partition, end_offset = self.partitions[topic], log.log_end_offset
            assert partition.highest_seen <= end_offset <= len(partition.values), "lost, or made up"
            assert log.log_start_offset >= partition.deleted_before, "deleted, and back"
            stored: list[bytes | None] = []
            for header, batch in log.ledger.batches.iterate(log.log_start_offset):
                records = [] if header.is_control else list(iterate_records(batch))
                stored += [record.value for record in records] or [None]
            begin = end_offset - len(stored)
            assert stored == partition.values[begin:end_offset], "something else is there"
            del partition.values[end_offset:]
            partition.highest_seen = end_offset
        survived = {id(one): len(one.values) for one in self.partitions.values()}
        there = [each.offset < survived.get(id(each.partition), 0) for each in self.appended]
        of_now = [id(each.partition) in survived for each in self.appended]
        atomic = [n for n, each in enumerate(self.appended) if each.is_atomic and there[n]]
        for number in range(max(atomic, default=0)):
            assert there[number] or not of_now[number], "torn"
        self.appended.clear()


def tell(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One history, with a journal of another size."""
    world = World(seed)
    choose = world.random.choice
    monkeypatch.setattr(
        logstore.segments.unsynced, "JOURNALED_BYTES_MAX", choose((400, 1_000, 32_768))
    )
    monkeypatch.setattr(
        logstore.sync.group_commit, "JOURNALED_BYTES_MAX", choose((800, 3_000, 32_768))
    )
    monkeypatch.setattr(logstore.sync.journal, "FLUSH_BYTES", choose((200, 1_000, 1 << 20)))
    monkeypatch.setattr(logstore.sync.journal, "_GROWTH", bytes(choose((64, 1_024, 65_536))))
    capacity_bytes = choose((1_500, 4_000, 1 << 24))
    journal = partial(Journal, capacity_bytes=capacity_bytes)
    monkeypatch.setattr(logstore.directory.log_directory, "Journal", journal)
    world.start()
    for _ in range(world.random.randint(1, 5)):
        world.end()


def test_no_crash_loses_tears_or_brings_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(HISTORIES * SOAK):
        tell(seed, monkeypatch)


#: A rule broken on purpose, and what is found then.
FLAWS: dict[str, tuple[object, str, Any, str]] = {
    "what is atomic is not held back": (
        FileLedger,
        "append",
        append_at_once,
        "torn",
    ),
    "the journal is forgotten": (
        logstore.directory.log_directory,
        "replay_journal",
        lambda *_, **__: Replayed(),
        "lost|torn",
    ),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_histories_find(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, found = FLAWS[flaw]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match=found):
        for seed in range(HISTORIES):
            tell(seed, monkeypatch)
