"""Compaction through a whole broker: which log goes first, how fast, and what a stop leaves."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from logstore.cleaner.batches import CleaningPlan
from logstore.cleaner.process import ProcessPasses
from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.runtime import cleaning
from magnetar.runtime.cleaning import Pace, Stopped
from tests.magnetar.clocks import HandClock
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import SimpleRecord, build_batch, iterate_records

StartBroker = Callable[..., Awaitable[Broker]]

NOW_MS = HandClock().ms
ON_DISK = {"durability": "page-cache", "log.cleaner.backoff.ms": "3600000"}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "file.delete.delay.ms": "0"}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


async def fill(log: PartitionLog, keys: list[bytes], first_ms: int = NOW_MS) -> None:
    """Append a record of each key, each in a segment of its own."""
    end_offset = 0
    for number, key in enumerate(keys):
        batch = build_batch([SimpleRecord(key, b"%d" % number, first_ms + 10 * number)])
        end_offset = log.append(log.check(batch, NOW_MS)).end_offset
    await log.durable(end_offset)


def offsets(log: PartitionLog) -> list[int]:
    batches = log.ledger.batches.iterate(log.log_start_offset)
    return [record.offset for _, batch in batches for record in iterate_records(batch)]


async def test_the_last_record_of_each_key_stays_and_the_files_of_others_go(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=COMPACTED)
    log = broker.topics.partition("a", 0)
    await fill(log, [b"x", b"y", b"x", b"y", b"x", b"z"])
    assert await broker.cleaner.clean() == 1
    assert offsets(log) == [3, 4, 5]
    assert log.first_dirty_offset == 5
    assert await broker.cleaner.clean() == 0
    directory = Path(broker.data_dir) / "a-0"
    while list(directory.glob("*.deleted")):
        await asyncio.sleep(0.01)
    assert len(list(directory.glob("*.log"))) == 2
    checkpoint = (Path(broker.data_dir) / "cleaner-offset-checkpoint").read_text()
    assert checkpoint == "0\n1\na 0 5\n"


async def test_a_restart_goes_on_where_it_was_clean(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=COMPACTED)
    await fill(broker.topics.partition("a", 0), [b"x", b"x", b"y", b"z"])
    await broker.cleaner.clean()
    state = broker.topics.partition("a", 0).state
    data_dir = broker.data_dir
    await broker.stop()
    again = await start_broker({**ON_DISK, "log.dir": str(data_dir)}, clock=clock)
    log = again.topics.partition("a", 0)
    assert (log.first_dirty_offset, offsets(log)) == (3, [1, 2, 3])
    assert log.state == state


async def test_the_dirtiest_goes_first_and_what_is_clean_enough_waits(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    cleaned: list[str] = []
    monkeypatch.setattr(cleaning, "_tell_cleaned", lambda log, *_facts: cleaned.append(log.topic))
    for name in ("clean", "dirty", "overdue", "young"):
        broker.topics.create(name, configs=COMPACTED)
        await fill(broker.topics.partition(name, 0), [b"x", b"y", b"x", b"y"])
    await broker.cleaner.clean()
    cleaned.clear()
    await fill(broker.topics.partition("dirty", 0), [b"x"] * 9, NOW_MS + 100)
    await fill(broker.topics.partition("clean", 0), [b"x"], NOW_MS + 100)
    await fill(broker.topics.partition("overdue", 0), [b"x"], NOW_MS + 100)
    await fill(broker.topics.partition("young", 0), [b"x"] * 9, NOW_MS + 100)
    later = {"overdue": {"max.compaction.lag.ms": "1"}, "young": {"min.compaction.lag.ms": "9999"}}
    for name, configs in later.items():
        topic = broker.topics.by_name(name)
        assert topic is not None
        broker.topics.configs.replace(topic, {**COMPACTED, **configs})
    clock.ms += 1_000
    await broker.cleaner.clean()
    assert cleaned == ["overdue", "dirty"]


@pytest.mark.parametrize("head_ms", [-1, NOW_MS + 60_000], ids=["no time", "to come"])
async def test_a_head_whose_time_says_nothing_makes_no_record_wait(
    start_broker: StartBroker, clock: HandClock, head_ms: int
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    # Never dirty enough.
    rare = {**COMPACTED, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
    broker.topics.create("a", configs=rare)
    log = broker.topics.partition("a", 0)
    for first_ms in (head_ms, NOW_MS, NOW_MS + 900):
        await fill(log, [b"x"], first_ms)
        log.ledger.roll()
    await fill(log, [b"y"], NOW_MS + 900)
    clock.ms = NOW_MS + 1_000
    assert await broker.cleaner.clean() == 0
    clock.ms += 1
    assert await broker.cleaner.clean() == 1
    assert offsets(log) == [2, 3]


async def test_no_segment_without_times_is_read_for_its_age(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look would read all of them again; over a shared store, whole."""
    broker = await start_broker(ON_DISK, clock=clock)
    rare = {**COMPACTED, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
    broker.topics.create("a", configs=rare)
    log = broker.topics.partition("a", 0)
    for first_ms in (-1, 0, -1, NOW_MS, -1, NOW_MS):
        await fill(log, [b"x"], first_ms)
        log.ledger.roll()
    read: list[int] = []
    segments = log.ledger.segments
    read_sealed = segments.read_sealed
    # A store knows them always, files once they were asked for.
    for base_offset in segments.base_offsets:
        await segments.read_max_timestamp(base_offset)

    async def noted(base_offset: int) -> object:
        read.append(base_offset)
        return await read_sealed(base_offset)

    monkeypatch.setattr(segments, "read_sealed", noted)
    assert await broker.cleaner.clean() == 0
    assert read == [3]


async def test_policy_that_changes_while_the_broker_runs(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs={**COMPACTED, "cleanup.policy": "delete"})
    topic, log = broker.topics.by_name("a"), broker.topics.partition("a", 0)
    assert topic is not None
    await fill(log, [b"x", b"x", b"y"])
    assert await broker.cleaner.clean() == 0
    both = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "15"}
    broker.topics.configs.replace(topic, both)
    assert await broker.cleaner.clean() == 1
    assert offsets(log) == [1, 2]
    clock.ms = NOW_MS + 30
    await broker.retention.check()
    assert offsets(log) == [2]


async def test_a_damaged_log_is_left_alone(start_broker: StartBroker, clock: HandClock) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    for name in ("bad", "good"):
        broker.topics.create(name, configs=COMPACTED)
        await fill(broker.topics.partition(name, 0), [b"x", b"x", b"y"])
    path = Path(broker.data_dir) / "bad-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-4] + b"\xff\xff\xff\xff")
    await broker.cleaner.clean()
    good, bad = (broker.topics.partition(name, 0) for name in ("good", "bad"))
    assert offsets(good) == [1, 2]
    assert bad in broker.cleaner.uncleanable and bad.first_dirty_offset == 0
    assert len(bad.ledger.segments.base_offsets) == 3


async def test_a_log_whose_store_does_not_answer_is_cleaned_later(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=COMPACTED)
    log = broker.topics.partition("a", 0)
    await fill(log, [b"x", b"x", b"y"])

    async def silent(_: int) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(log.ledger.segments, "read_sealed", silent)
        patch.setattr(log.ledger.segments, "read_max_timestamp", silent)
        await broker.cleaner.clean()
    assert offsets(log) == [0, 1, 2] and log not in broker.cleaner.uncleanable
    await broker.cleaner.clean()
    assert offsets(log) == [1, 2]


async def test_a_topic_deleted_in_between_is_nobodys_loss(
    start_broker: StartBroker, clock: HandClock
) -> None:
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=COMPACTED)
    log = broker.topics.partition("a", 0)
    await fill(log, [b"x", b"x", b"y"])
    topic = broker.topics.by_name("a")
    assert topic is not None
    running = asyncio.ensure_future(broker.cleaner.clean())
    await asyncio.sleep(0)
    await broker.topics.deletion.perform([topic])
    await running
    assert not Path(broker.data_dir, "a-0").exists()
    assert await broker.cleaner.clean() == 0


def test_the_pace_is_kept() -> None:
    rate = 1_000_000.0
    pace = Pace(lambda: rate, lambda: True)
    loop = asyncio.new_event_loop()
    try:
        began = loop.time()
        for _ in range(11):
            pace(10_000)
            pace._slice_began = 0.0
        pace(0)
        assert loop.time() - began >= 0.09
    finally:
        loop.close()
    pace.is_stopped = True
    pace._slice_began = 0.0
    with pytest.raises(Stopped):
        pace(0)


async def with_a_dirty_log(
    start_broker: StartBroker, clock: HandClock
) -> tuple[Broker, PartitionLog]:
    """Start a broker with a log in files: offsets 0 to 2, of which 0 is superseded."""
    broker = await start_broker(ON_DISK, clock=clock)
    broker.topics.create("a", configs=COMPACTED)
    log = broker.topics.partition("a", 0)
    await fill(log, [b"x", b"x", b"y"])
    return broker, log


async def test_a_large_log_has_a_process_for_its_run(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, log = await with_a_dirty_log(start_broker, clock)
    started = note_processes(monkeypatch)
    monkeypatch.setattr(cleaning, "PROCESS_BYTES", log.size_bytes + 1)
    assert await broker.cleaner.clean() == 1
    assert (started, offsets(log)) == ([], [1, 2])
    await fill(log, [b"y", b"z", b"z", b"z"], NOW_MS + 100)
    monkeypatch.setattr(cleaning, "PROCESS_BYTES", 0)
    assert await broker.cleaner.clean() == 1
    assert offsets(log) == [1, 3, 5, 6]
    assert [passes.process.returncode for passes in started] == [-signal.SIGKILL]


async def test_a_process_that_dies_is_told_once_and_the_next_look_starts_another(
    start_broker: StartBroker,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker, log = await with_a_dirty_log(start_broker, clock)
    started = note_processes(monkeypatch)
    monkeypatch.setattr(cleaning, "PROCESS_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(ProcessPasses, "begin_cleaning", kill_first(ProcessPasses.begin_cleaning))
        await broker.cleaner.clean()
    assert capsys.readouterr().err.count("ended with code -9") == 1
    assert offsets(log) == [0, 1, 2] and log not in broker.cleaner.uncleanable
    await broker.cleaner.clean()
    assert (len(started), offsets(log)) == (2, [1, 2])


async def test_where_no_process_starts_the_thread_cleans(
    start_broker: StartBroker,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker, log = await with_a_dirty_log(start_broker, clock)
    monkeypatch.setattr(cleaning, "PROCESS_BYTES", 0)
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    for _ in range(2):
        await broker.cleaner.clean()
    assert offsets(log) == [1, 2]
    assert capsys.readouterr().err.count("no process") == 1


async def test_a_stop_ends_the_process(
    start_broker: StartBroker, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = await with_a_dirty_log(start_broker, clock)
    started = note_processes(monkeypatch)
    monkeypatch.setattr(cleaning, "PROCESS_BYTES", 0)
    running = asyncio.ensure_future(broker.cleaner.clean())
    while not started:
        await asyncio.sleep(0.001)
    started[0].process.send_signal(signal.SIGSTOP)
    await broker.stop()
    with pytest.raises(Stopped):
        await running
    assert started[0].process.returncode == -signal.SIGKILL


def note_processes(monkeypatch: pytest.MonkeyPatch) -> list[ProcessPasses]:
    """Return a list of the passes that will be started."""
    started: list[ProcessPasses] = []

    class Noted(ProcessPasses):
        def _await_start(self) -> None:
            started.append(self)
            super()._await_start()

    monkeypatch.setattr(cleaning, "ProcessPasses", Noted)
    return started


def kill_first(
    method: Callable[[ProcessPasses, CleaningPlan], int],
) -> Callable[[ProcessPasses, CleaningPlan], int]:
    """Return the method, which kills the process first."""

    def killing(passes: ProcessPasses, plan: CleaningPlan) -> int:
        passes.process.kill()
        return method(passes, plan)

    return killing


async def test_in_memory_too(start_broker: StartBroker, clock: HandClock) -> None:
    broker = await start_broker({**ON_DISK, "durability": "memory"}, clock=clock)
    broker.topics.create("a", configs={**COMPACTED, "segment.bytes": "1048576"})
    log = broker.topics.partition("a", 0)
    batch = build_batch([SimpleRecord(b"k", bytes(400_000), NOW_MS)])
    for _ in range(9):
        await log.durable(log.append(log.check(bytearray(batch), NOW_MS)).end_offset)
    before = log.size_bytes
    assert await broker.cleaner.clean() == 1
    assert offsets(log) == [7, 8]
    assert log.size_bytes < before / 3
