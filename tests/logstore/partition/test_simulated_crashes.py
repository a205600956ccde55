"""Crashes on the simulated disk: what was durable is there, what is shown is durable.

A story is a list of commands on two ledgers that share one group commit. After every stop, of the
process or of the power, in mid-operation or between, in recovery too, the next process must find

- at least everything below the durable end offset that anybody could have seen,
- nothing but a prefix of what was appended, byte for byte,
- and all of it durable: losing power at once again takes nothing away.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log_config import LogConfig
from logstore.segments import file_ledger
from logstore.segments.file_ledger import FileLedger
from logstore.sync.group_commit import GroupCommit
from tests.logstore.ledgers import close_cleanly, open_now
from tests.logstore.simulated_disk import PowerLost, SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor
from tests.soak import SOAK
from wire.records import BatchHeader, SimpleRecord, build_batch

ALL = 2**62
LIMITS = LogConfig(segment_bytes=700, index_interval_bytes=150)
JOURNAL = "journal.txnindex"


@dataclass
class Partition:
    """One ledger and what must be true of it."""

    directory: str
    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    #: Seen durable: may have been answered to a client.
    durable_end_offset: int = 0
    start_offset: int = 0
    #: As a checkpoint on another disk would have it.
    recovery_point: int = 0
    journal: bytes = b""
    #: The journal's bytes that were durable together with the offset.
    durable_journal: int = 0
    journal_at: dict[int, int] = field(default_factory=dict)
    ledger: FileLedger | None = None


class Story:
    """The broker's storage over many lives."""

    def __init__(self, seed: int, *, can_sync_all: bool) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed, can_sync_all=can_sync_all)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.partitions = [Partition("/data/a-0"), Partition("/data/b-0")]
        #: After how many operations the power is lost again, in the recoveries to come.
        self.recoveries_cut: list[int] = []
        self.start()

    def start(self) -> None:
        """Open everything; a loss of power on the way starts over."""
        try:
            self._open()
        except PowerLost:
            self.disk = self.disk.crash(self.random)
            self.start()

    def _open(self) -> None:
        self.executor = SteppedExecutor()
        self.group_commit = GroupCommit(
            self.disk,
            Durability.FSYNC,
            on_failure=lambda _failure: None,
            executor=self.executor,
            sync_all_from=self.random.choice([1, 3, 100]),
        )
        for partition in self.partitions:
            partition.ledger = FileLedger(
                self.disk,
                partition.directory,
                self.group_commit,
                LIMITS,
                start_offset=partition.start_offset,
                recovery_point=partition.recovery_point,
            )
            open_now(partition.ledger)

    def check(self) -> None:
        """After a start: compare what is there with what was promised; it is the truth now."""
        for partition in self.partitions:
            ledger = partition.ledger
            assert ledger is not None and ledger.recovered is not None
            assert ledger.recovered.lost_offsets == 0
            assert partition.durable_end_offset <= ledger.end_offset <= partition.end_offset
            assert ledger.durable_end_offset == ledger.end_offset
            assert ledger.start_offset == partition.start_offset
            found = [bytes(batch) for _, batch in ledger.batches.iterate(partition.start_offset)]
            self._take_over(partition, ledger.end_offset)
            tail = [b for b in partition.batches if last(b) >= partition.start_offset]
            assert found == tail
            self._check_reads(partition, ledger)
            journal = ledger.attachments.read(JOURNAL) or b""
            assert (
                journal[: partition.durable_journal]
                == (partition.journal[: partition.durable_journal])
            )
            self._replace_journal(partition, ledger)

    def _take_over(self, partition: Partition, end_offset: int) -> None:
        while partition.batches and last(partition.batches[-1]) >= end_offset:
            partition.batches.pop()
        partition.end_offset = partition.durable_end_offset = end_offset

    def _check_reads(self, partition: Partition, ledger: FileLedger) -> None:
        for _ in range(5):
            if partition.start_offset == ledger.end_offset:
                return
            offset = self.random.randrange(partition.start_offset, ledger.end_offset)
            _, found = next(ledger.batches.iterate(offset))
            assert bytes(found) == next(b for b in partition.batches if last(b) >= offset)

    def _replace_journal(self, partition: Partition, ledger: FileLedger) -> None:
        """As its owner does after recovery: what was durable is written again, the rest dropped."""
        partition.journal = partition.journal[: partition.durable_journal]
        if partition.journal != (ledger.attachments.read(JOURNAL) or b""):
            ledger.attachments.write(JOURNAL, partition.journal)

    def note_durable(self) -> None:
        for partition in self.partitions:
            ledger = partition.ledger
            assert ledger is not None
            partition.durable_end_offset = ledger.durable_end_offset
            marks = [n for at, n in partition.journal_at.items() if at <= ledger.durable_end_offset]
            partition.durable_journal = max([partition.durable_journal, *marks])

    # Commands

    def append(self, which: int, count: int) -> None:
        partition = self.partitions[which]
        ledger = partition.ledger
        assert ledger is not None
        value = self.random.randbytes(self.random.choice([1, 30, 200]))
        records = [SimpleRecord(None, value, 1000 + i) for i in range(count)]
        batch = bytes(build_batch(records, base_offset=ledger.end_offset))
        partition.batches.append(batch)
        partition.end_offset = ledger.end_offset + count
        ledger.append(batch, BatchHeader.parse(batch))

    def journal(self, which: int) -> None:
        """Append to the attachment and to the log in one step: durable together."""
        partition = self.partitions[which]
        assert partition.ledger is not None
        entry = self.random.randbytes(5)
        partition.ledger.attachments.append(JOURNAL, entry)
        partition.journal += entry
        self.append(which, 1)
        partition.journal_at[partition.end_offset] = len(partition.journal)

    def step(self) -> None:
        self.executor.step()
        self.note_durable()

    def sync(self) -> None:
        self.executor.run()
        self.note_durable()

    def checkpoint(self, which: int) -> None:
        partition = self.partitions[which]
        assert partition.ledger is not None
        partition.recovery_point = partition.ledger.recovery_point

    def trim(self, which: int) -> None:
        partition = self.partitions[which]
        assert partition.ledger is not None
        end = partition.ledger.durable_end_offset
        partition.start_offset = self.random.randint(partition.start_offset, end)
        partition.ledger.trim(partition.start_offset)

    def stop_power(self) -> None:
        self.disk = self.disk.crash(self.random)
        self._after_stop()

    def stop_process(self) -> None:
        self.disk = disk = self.disk.kill(self.random)
        for partition in self.partitions:
            assert partition.ledger is not None
            partition.journal = partition.ledger.attachments.read(JOURNAL) or b""
        self._after_stop(killed=disk)

    def stop_cleanly(self) -> None:
        for partition in self.partitions:
            assert partition.ledger is not None
            close_cleanly(partition.ledger)
        self.executor.run()  # a sync under way ends after the close
        if self.group_commit.failure is not None:
            # The disk told that one alone what it has lost: no clean stop, as `LogDirectory` sees.
            raise self.group_commit.failure
        for partition in self.partitions:
            assert partition.ledger is not None
            partition.recovery_point = partition.ledger.recovery_point
        self.note_durable()
        assert self.disk.open_files == 0
        self.stop_power()

    def _after_stop(self, killed: SimulatedDisk | None = None) -> None:
        if self.recoveries_cut:
            self.disk.lose_power_after(self.recoveries_cut.pop())
        for partition in self.partitions:
            partition.journal_at.clear()
        self.start()
        if self.disk is killed:  # a recovery makes durable what it shows, attachments too
            for partition in self.partitions:
                partition.durable_journal = len(partition.journal)
        try:
            self.check()
        except PowerLost:
            self.stop_power()

    def lose_power_soon(self, operations: int) -> None:
        self.disk.lose_power_after(operations)

    def cut_a_recovery(self, operations: int) -> None:
        self.recoveries_cut.append(operations)

    def fail_a_sync(self) -> None:
        for operation in ("sync", "sync_all", "sync_directory"):
            self.disk.fail(operation, errno.EIO)

    def fill_the_disk(self) -> None:
        self.disk.space_left = self.random.randrange(300)

    def perform(self, name: str, which: int, amount: int) -> None:
        """Perform one command; a failing disk ends the process, lost power the machine."""
        arguments = {
            "append": (which, amount),
            "journal": (which,),
            "checkpoint": (which,),
            "trim": (which,),
            "lose_power_soon": (amount * 4,),
            "cut_a_recovery": (amount * 3,),
        }.get(name, ())
        try:
            getattr(self, name)(*arguments)
            if self.group_commit.failure is not None:
                self.stop_process()
        except StorageFailure:
            self.stop_process()
        except PowerLost:
            self.stop_power()


def last(batch: bytes) -> int:
    return BatchHeader.parse(batch).last_offset


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "CHECKPOINT_BYTES", 500)


COMMANDS = [
    *["append"] * 6,
    *["step"] * 4,
    *["journal", "sync", "checkpoint", "trim"],
    *["stop_power", "stop_process", "stop_cleanly"],
    *["lose_power_soon", "cut_a_recovery", "fail_a_sync", "fill_the_disk"],
]


@settings(max_examples=300 * SOAK, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    can_sync_all=st.booleans(),
    commands=st.lists(
        st.tuples(st.sampled_from(COMMANDS), st.integers(0, 1), st.integers(1, 5)), max_size=150
    ),
)
@example(
    seed=0,
    can_sync_all=True,
    commands=[
        ("trim", 0, 1),
        *[("append", 0, 1)] * 2,
        ("step", 0, 1),
        ("append", 0, 1),
        *[("step", 0, 1)] * 2,
        ("fail_a_sync", 0, 1),
        ("step", 0, 1),
        ("stop_cleanly", 0, 1),
    ],
)
def test_every_crash_keeps_what_was_durable_and_shows_nothing_else(
    seed: int, can_sync_all: bool, commands: list[tuple[str, int, int]]
) -> None:
    story = Story(seed, can_sync_all=can_sync_all)
    for command in commands:
        story.perform(*command)
    story.recoveries_cut.clear()
    story.stop_power()
    story.stop_power()


@pytest.mark.parametrize("seed", range(40))
def test_power_lost_at_each_operation(seed: int) -> None:
    """Lose power at every single operation of one story, and in the recovery that follows."""
    random = Random(seed)
    for operation in range(seed % 4, 160, 4):
        story = Story(seed, can_sync_all=seed % 2 == 0)
        story.disk.lose_power_after(operation)
        for _ in range(30):
            name = random.choice(["append", "append", "journal", "step", "step", "checkpoint"])
            story.perform(name, random.randrange(2), random.randint(1, 3))
        story.recoveries_cut = [random.randrange(12)]
        story.stop_power()
        story.stop_power()
