"""The reserve of a disk: clients are refused below it, and taken again once there is room."""

from __future__ import annotations

import errno

import pytest

from logstore.disk.room import NoRoom, Room
from logstore.partition.log_config import LogConfig
from tests.logstore.log_process import LogProcess
from tests.logstore.partitions import batch_of
from tests.logstore.simulated_disk import SimulatedDisk
from wire.error_code import ErrorCode
from wire.records import SimpleRecord

NOW_MS = 1_000


class World:
    """A room whose disk is a number."""

    def __init__(self, free_bytes: int, reserve_bytes: int = 1000) -> None:
        self.free_bytes = free_bytes
        self.measured = 0
        self.told: list[tuple[bool, int]] = []
        self.room = Room(self._measure, reserve_bytes, lambda *told: self.told.append(told))

    def _measure(self) -> int:
        self.measured += 1
        return self.free_bytes

    def is_refused(self, size_bytes: int, now_ms: int = NOW_MS) -> bool:
        try:
            self.room.check(size_bytes, now_ms)
        except NoRoom as refusal:
            assert refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert refusal.code.retriable
            return True
        return False


def test_clients_leave_the_reserve_alone_and_the_change_is_told_once() -> None:
    world = World(1100)
    assert not world.is_refused(100)
    for _ in range(3):
        assert world.is_refused(101)
    assert world.told == [(True, 1100)]
    assert world.room.refusals == 3
    world.free_bytes = 5000
    assert not world.is_refused(101)
    assert not world.is_refused(101)
    assert world.told == [(True, 1100), (False, 5000)]


def test_a_little_room_more_is_not_told_as_an_end() -> None:
    world = World(1000)
    assert world.is_refused(1)
    world.free_bytes = 1100
    assert world.is_refused(1)
    world.free_bytes = 1126
    assert not world.is_refused(1)


def test_the_file_system_is_asked_rarely_while_there_is_room() -> None:
    world = World(1 << 30)
    for _ in range(1000):
        assert not world.is_refused(100)
    assert world.measured == 1
    assert not world.is_refused(100, NOW_MS + 100)
    assert world.measured == 2
    # Another process may have filled the disk meanwhile, and a clock may have been set back.
    world.free_bytes = 0
    assert world.is_refused(100, NOW_MS)


def test_a_write_without_room_keeps_clients_out_for_a_second_whatever_is_measured() -> None:
    world = World(1 << 30)
    assert not world.is_refused(100)
    world.room.ran_out()
    assert world.is_refused(100, NOW_MS + 999)
    assert not world.is_refused(100, NOW_MS + 1000)
    assert [is_full for is_full, _ in world.told] == [True, False]


def test_a_clock_that_was_set_back_after_it_keeps_clients_out_no_longer() -> None:
    world = World(1 << 30)
    assert not world.is_refused(100)
    world.room.ran_out()
    assert not world.is_refused(100, NOW_MS + 1000)
    assert not world.is_refused(100, NOW_MS - 3_600_000)


class Opened(LogProcess):
    """One partition on a simulated disk, with a journal."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.begin(self.disk, LogConfig())
        self.log = self.directory.open("topic", 0)

    def append(self, value: bytes) -> None:
        self.log.append(self.log.check(batch_of(value), NOW_MS))

    def settle(self) -> None:
        self.executor.run()
        assert not self.failures


@pytest.mark.parametrize("space_left", [0, 1, 40])
def test_a_batch_that_finds_no_room_is_refused_and_leaves_nothing(space_left: int) -> None:
    world = Opened()
    world.append(b"first")
    world.settle()
    path = f"/data/topic-0/{0:020d}.log"
    size = world.disk.facts(path).size_bytes
    world.disk.space_left = space_left
    for _ in range(3):
        with pytest.raises(NoRoom, match="No space left"):
            world.append(b"second")
        assert world.disk.facts(path).size_bytes == size
        assert (world.log.log_end_offset, world.log.high_watermark) == (1, 1)
    world.settle()
    world.disk.space_left = None
    world.append(b"third")
    world.settle()
    assert world.log.high_watermark == 2
    for end in (world.disk.kill, world.disk.crash):
        world.directory.abandon()
        world.begin(end(world.disk.random), LogConfig())
        assert world.directory.open("topic", 0).log_end_offset == 2


def test_what_a_refused_batch_has_left_is_gone_before_a_later_one_is_acknowledged() -> None:
    world = Opened()
    world.append(b"first")
    world.settle()
    world.disk.space_left = 60
    with pytest.raises(NoRoom):
        world.append(b"x" * 500)
    world.disk.space_left = None
    world.append(b"y")
    world.settle()
    for seed in range(50):
        world.disk.random.seed(seed)
        process = LogProcess()
        process.begin(world.disk.crash(world.disk.random), LogConfig())
        log = process.directory.open("topic", 0)
        assert log.log_end_offset == 2
        process.directory.abandon()


def test_a_coordinators_record_is_not_refused_but_ends_the_process() -> None:
    world = Opened()
    world.append(b"first")
    world.settle()
    world.disk.fail("write", errno.ENOSPC)
    with pytest.raises(Exception, match="No space left") as raised:
        world.log.append_records([SimpleRecord(b"k", b"v", NOW_MS)])
    assert not isinstance(raised.value, NoRoom)
    assert len(world.failures) == 1
