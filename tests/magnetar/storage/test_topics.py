"""Topics: names and counts as Kafka takes them, found by name and id, gone when deleted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.broker import Broker
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.logs import Opening
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from magnetar.storage.topics import CATALOG
from tests.logstore.partitions import expire
from tests.magnetar.conftest import crash
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import SimpleRecord, build_batch

StartBroker = Callable[..., Awaitable[Broker]]

ON_DISK = {"durability": "page-cache"}


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "__own", "..."])
async def test_legal_names(broker: Broker, name: str) -> None:
    assert broker.topics.create(name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\x00"])
async def test_illegal_names(broker: Broker, name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        broker.topics.create(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_names_that_differ_by_dot_and_underscore_collide(broker: Broker) -> None:
    broker.topics.create("a.b")
    with pytest.raises(KafkaError) as refused:
        broker.topics.create("a_b")
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    broker.topics.create("ab")


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (2**31 - 1, 1, ErrorCode.POLICY_VIOLATION),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -3, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
async def test_counts_no_topic_can_have(
    broker: Broker, partitions: int, factor: int, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        broker.topics.create("a", partitions, factor)
    assert refused.value.code is code
    assert broker.topics.by_name("a") is None


async def test_a_topic_is_found_by_name_and_id(broker: Broker) -> None:
    topic = broker.topics.create("a", 3, 1, {"retention.ms": "5"})
    assert broker.topics.by_name("a") is topic
    assert broker.topics.by_id(topic.id) is topic
    assert topic.replication_factor == 1
    assert topic.settings.retention_ms == 5
    assert broker.topics.partition("a", 2).partition == 2
    for name, index in (("a", 3), ("a", -1), ("b", 0)):
        with pytest.raises(KafkaError) as refused:
            broker.topics.partition(name, index)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_ensure_creates_with_the_brokers_defaults(start_broker: StartBroker) -> None:
    broker = await start_broker({"num.partitions": "4"})
    assert len(broker.topics.ensure("a").partitions) == 4
    assert broker.topics.ensure("a") is broker.topics.by_name("a")


async def test_the_coordinators_topics_are_internal(broker: Broker) -> None:
    topic = broker.topics.ensure(CONSUMER_OFFSETS)
    assert topic.is_internal
    assert len(topic.partitions) == 2
    assert topic.settings.cleanup_policy == ["compact"]
    assert topic is broker.topics.ensure_internal(CONSUMER_OFFSETS)


async def test_coordinators_segments_are_short_for_a_start_replays_what_is_not_compacted(
    broker: Broker,
) -> None:
    topic = broker.topics.ensure(CONSUMER_OFFSETS)
    log = broker.topics.partition(CONSUMER_OFFSETS, 0)
    assert topic.settings.segment_bytes == 100 << 20
    assert log.config.segment_bytes == log.config.max_message_bytes == 1_048_588
    larger = {**topic.configs, "max.message.bytes": str(5 << 20)}
    broker.topics.reconfigure(topic, larger)
    assert log.config.segment_bytes == 5 << 20
    broker.topics.reconfigure(topic, {**larger, "segment.bytes": str(1 << 20)})
    assert log.config.segment_bytes == 1 << 20


async def test_coordinators_may_write_batches_of_a_mebibyte_whatever_is_set(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(ON_DISK)
    for name in (CONSUMER_OFFSETS, "a"):
        topic = broker.topics.ensure(name)
        broker.topics.reconfigure(topic, {**topic.configs, "max.message.bytes": "10"})
        assert topic.settings.max_message_bytes == 10
    for _ in range(2):
        limits = [
            broker.topics.partition(name, 0).config.max_message_bytes
            for name in (CONSUMER_OFFSETS, "a")
        ]
        assert limits == [1_048_588, 10]
        await broker.stop()
        broker = await start_broker(ON_DISK)


async def test_a_deleted_topic_is_gone_and_may_be_made_again(broker: Broker) -> None:
    gone: list[Topic] = []
    broker.topics.on_deleted.append(gone.append)
    topic = broker.topics.create("a")
    (log,) = topic.local
    await broker.topics.delete([topic])
    assert gone == [topic] and log.is_gone
    assert broker.topics.by_name("a") is None
    assert broker.topics.by_id(topic.id) is None
    assert broker.topics.create("a").id != topic.id


async def test_topics_that_are_deleted_together_go_and_are_freed_some_in_each_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.storage.topics._PARTITIONS_A_TURN", 16)
    made = (broker.topics.create(f"t{number}", 8) for number in range(5))
    living = weakref.WeakSet(topic.local[0] for topic in made)
    seen: list[tuple[int, int]] = []
    turn = 0
    broker.topics.on_deleted.append(lambda _: seen.append((turn, len(living))))
    deleting = asyncio.ensure_future(broker.topics.delete(iter(broker.topics.all())))
    while not deleting.done():
        await asyncio.sleep(0)
        turn += 1
    assert [left for _, left in seen] == [5, 5, 3, 3, 1]
    assert len({at for at, _ in seen}) == 3


@pytest.mark.parametrize("durability", ["fsync", "page-cache", "memory"])
async def test_a_deleted_topic_leaves_no_work_to_the_garbage_collection(
    start_broker: StartBroker, durability: str
) -> None:
    broker = await start_broker({"durability": durability})
    topic = broker.topics.create("a", 2)
    for log in topic.local:
        await log.durable(
            log.append(log.check(build_batch([SimpleRecord(None, b"v", 1)]), 1)).end_offset
        )
    held = [weakref.ref(each) for log in topic.local for each in (log, log.ledger)]
    gc.collect()
    gc.disable()
    try:
        await broker.topics.delete([topic])
        del topic, log
        # The step in which the deletion ends holds the topic, too.
        await asyncio.sleep(0)
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.parametrize("in_turns", [False, True])
async def test_a_topic_made_again_just_before_a_kill_misses_nothing(
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_turns: bool,
) -> None:
    first = await start_broker(ON_DISK)
    batch = build_batch([SimpleRecord(None, b"v", 1)])
    log = first.topics.create("a").local[0]
    log.append(log.check(batch, 1))
    await first.stop()
    second = await start_broker(ON_DISK)
    (former,) = second.topics.all()
    await second.topics.delete([former])
    add_topics = second.catalog.add_topics

    def killed(rows: Sequence[TopicRow]) -> None:
        add_topics(rows)
        raise InterruptedError

    monkeypatch.setattr(second.catalog, "add_topics", killed)
    row = second.topics.new_row("a", 1, 1, {})
    with pytest.raises(InterruptedError):
        await second.topics.create_in_turns(row) if in_turns else second.topics.create("a", 1)
    await crash(second)
    third = await start_broker(ON_DISK)
    log = third.topics.partition("a", 0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert '"error"' not in capsys.readouterr().err


async def test_topics_and_their_settings_survive_a_restart(start_broker: StartBroker) -> None:
    first = await start_broker(ON_DISK)
    topic = first.topics.create("a", 2, 1, {"retention.ms": "5"})
    deleted = first.topics.create("b")
    await first.topics.delete([deleted])
    await first.stop()
    second = await start_broker(ON_DISK)
    again = second.topics.by_name("a")
    assert again is not None
    assert (again.id, len(again.partitions), again.replication_factor) == (topic.id, 2, 1)
    assert again.settings.retention_ms == 5
    assert [each.name for each in second.topics.all()] == ["a"]
    assert (first.epoch, second.epoch) == (0, 1)
    assert again.partitions[0].leader_epoch == 1


async def test_a_topic_directory_without_catalog_is_adopted(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    directory = tmp_path / "data" / "found-1"
    directory.mkdir(parents=True)
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n")
    broker = await start_broker(ON_DISK)
    topic = broker.topics.by_name("found")
    assert topic is not None
    assert topic.id == topic_id
    assert len(topic.partitions) == 2


async def test_what_only_has_a_name_like_a_partitions_is_left_alone(
    start_broker: StartBroker,
) -> None:
    first = await start_broker(ON_DISK)
    first.topics.create("a")
    await first.stop()
    names = ("backup-20261121", "notes-1", "a-00", "a-\N{SUPERSCRIPT TWO}")
    for name in names:
        (first.data_dir / name).mkdir()
        (first.data_dir / name / "readme.txt").touch()
    huge = first.data_dir / "huge-2000000000"
    huge.mkdir()
    (huge / f"{0:020d}.log").touch()
    (first.data_dir / "core-12").touch()
    second = await start_broker(ON_DISK)
    assert [topic.name for topic in second.topics.all()] == ["a"]
    await second.stop()
    left = {path.name for path in first.data_dir.iterdir()}
    assert left.issuperset([*names, huge.name, "core-12"])


async def test_ids_and_epochs_of_an_adopted_log_are_not_given_again(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    for epoch in range(3):
        first = await start_broker(ON_DISK)
        assert first.epoch == epoch
        if epoch < 2:
            await first.stop()
    log = first.topics.create("a").local[0]
    batch = build_batch(
        [SimpleRecord(b"key", b"value", 5)], producer_id=4711, producer_epoch=0, base_sequence=0
    )
    log.append(log.check(batch, 5))
    log.append_marker(TransactionMarker(4711, 0, 10, commit=True), now_ms=5)
    await first.stop()
    for file in (tmp_path / "data").glob("catalog.sqlite*"):
        file.unlink()
    second = await start_broker(ON_DISK)
    assert second.catalog.allocate_producer_ids(1000) == 4712
    adopted = second.topics.partition("a", 0)
    assert second.epoch == adopted.leader_epoch == 11
    assert second.cluster_id == first.cluster_id
    # Our coordinator ends a transaction of a producer that the other coordinator knew too.
    adopted.append_marker(TransactionMarker(4711, 0, second.epoch, commit=True), now_ms=6)


async def test_epochs_that_only_a_snapshot_of_an_adopted_log_tells_of_are_not_given_again(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    first = await start_broker(ON_DISK)
    log = first.topics.create("a").local[0]
    log.append_marker(TransactionMarker(4711, 0, 10, commit=True), now_ms=5)
    await log.durable(log.log_end_offset)
    expire(log, log.log_end_offset)
    await first.stop()
    directory = tmp_path / "data"
    assert [file.stat().st_size for file in directory.glob("a-0/*.log")] == [0]
    for file in (*directory.glob("catalog.sqlite*"), directory / ".magnetar-closed-logs"):
        file.unlink()
    second = await start_broker(ON_DISK)
    assert second.epoch == 11
    assert second.catalog.allocate_producer_ids(1000) == 4712


async def test_deleted_topics_are_remembered_until_their_files_are_gone(
    start_broker: StartBroker,
) -> None:
    first = await start_broker(ON_DISK)
    for name in "abc":
        topic = first.topics.create(name)
        await first.topics.delete([topic])
        assert first.catalog.deleted_topics() == {topic.id}
    await first.stop()
    second = await start_broker(ON_DISK)
    assert second.catalog.deleted_topics() == set()


async def test_one_data_directory_serves_one_broker(start_broker: StartBroker) -> None:
    from magnetar.config.load import ConfigError

    await start_broker(ON_DISK)
    with pytest.raises(ConfigError, match="in use"):
        await start_broker(ON_DISK)


async def test_a_stored_setting_that_is_not_understood_stops_no_start(
    start_broker: StartBroker,
) -> None:
    first = await start_broker(ON_DISK)
    stored = {
        "retention.ms": "5",
        "segment.bytes": "14",
        "gone.setting": "x",
        "max.compaction.lag.ms": "1",
        "min.compaction.lag.ms": "2",
    }
    first.catalog.set_topic_configs(first.topics.create("a").id, stored)
    await first.stop()
    broker = await start_broker(ON_DISK)
    topic = broker.topics.by_name("a")
    assert topic is not None and topic.configs == stored
    await broker.topics.inherit()
    assert topic.settings.retention_ms == 5
    assert topic.settings.segment_bytes == broker.config.log_segment_bytes
    assert topic.settings.max_compaction_lag_ms == 1
    assert topic.settings.min_compaction_lag_ms == 0


async def turns_until(change: asyncio.Future[Any]) -> int:
    """How often others come to work while something happens, besides waiting for threads."""
    turns = 0
    while not change.done():
        turns += 1
        await asyncio.sleep(0)
    await change
    return turns


async def test_others_are_served_while_a_large_topic_is_made_grown_and_deleted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(CATALOG, "run", at_once)
    topics = broker.topics
    row = topics.new_row("large", 700, 1, {})
    change = asyncio.ensure_future(topics.create_in_turns(row))
    assert await turns_until(change) >= 700 // 8
    assert len(change.result().local) == 700
    growth = asyncio.ensure_future(topics.grow("large", 1000))
    assert await turns_until(growth) >= 300 // 8
    deletion = asyncio.ensure_future(topics.delete([change.result()]))
    assert await turns_until(deletion) >= 1000 // 8
    assert topics.by_name("large") is None


async def test_what_takes_many_turns_is_seen_whole_or_not_at_all(
    broker: Broker, catalog_is_free: asyncio.Event
) -> None:
    topics = broker.topics
    row = topics.new_row("a", 50, 1, {})
    creation = asyncio.ensure_future(topics.create_in_turns(row))
    await asyncio.sleep(0.01)
    with pytest.raises(KafkaError) as refused:
        topics.create("a")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaError) as refused:
        topics.ensure("a")
    assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert topics.by_name("a") is None
    catalog_is_free.set()
    topic = await creation
    catalog_is_free.clear()
    deletion, again = (asyncio.ensure_future(topics.delete([topic])) for _ in range(2))
    await asyncio.sleep(0.01)
    assert topics.by_name("a") is topic, "its deletion is not durable yet"
    with pytest.raises(KafkaError) as refused:
        topics.check_growth("a", 60)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        topics.reconfigure(topic, {})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    catalog_is_free.set()
    assert (await deletion, await again) == ([topic.id], [])


async def test_settings_changed_while_partitions_are_made_are_theirs_too(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = broker.topics
    topic = topics.create("a", 1)
    open_together = topics._logs.open_together
    changes: list[Callable[[], object]] = []

    async def changed_meanwhile(openings: Iterable[Opening]) -> Sequence[PartitionLog | None]:
        logs = await open_together(openings)
        changes.pop()()
        return logs

    monkeypatch.setattr(topics._logs, "open_together", changed_meanwhile)
    changes.append(lambda: topics.reconfigure(topic, {"retention.ms": "5"}))
    await topics.grow("a", 10)
    assert {log.config.retention_ms for log in topic.local} == {5}
    changes.append(lambda: setattr(broker.config, "log_retention_ms", 7))
    other = await topics.create_in_turns(topics.new_row("b", 10, 1, {}))
    assert {log.config.retention_ms for log in other.local} == {7}
    assert other.settings.retention_ms == 7


async def test_who_needs_a_coordinators_topic_is_told_to_wait_while_it_is_created(
    broker: Broker,
) -> None:
    topics = broker.topics
    creation = asyncio.ensure_future(
        topics.create_in_turns(topics.new_row(CONSUMER_OFFSETS, 50, 1, {}))
    )
    await asyncio.sleep(0)
    for ask, code in (
        (topics.ensure, ErrorCode.LEADER_NOT_AVAILABLE),
        (topics.ensure_internal, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ):
        with pytest.raises(KafkaError) as refused:
            ask(CONSUMER_OFFSETS)
        assert refused.value.code is code
    created = await creation
    assert topics.ensure_internal(CONSUMER_OFFSETS) is created


async def test_new_logs_are_not_told_again_what_they_were_opened_with(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten thousand of them hold the event loop for 0.1 s.
    told: list[PartitionLog] = []
    broker = await start_broker(ON_DISK)
    monkeypatch.setattr(PartitionLog, "reconfigure", lambda log, _: told.append(log))
    row = broker.topics.new_row("a", 3, 1, {"retention.ms": "5"})
    created = await broker.topics.create_in_turns(row)
    assert told == []
    assert created.settings.retention_ms == 5


async def test_a_client_that_goes_leaves_no_half_a_topic(start_broker: StartBroker) -> None:
    broker = await start_broker(ON_DISK)
    row = broker.topics.new_row("a", 50, 1, {})
    creation = asyncio.ensure_future(broker.topics.create_in_turns(row))
    await asyncio.sleep(0)
    creation.cancel()
    await broker.topics.stop()
    topic = broker.topics.by_name("a")
    assert topic is not None and len(topic.partitions) == 50
    deletion = asyncio.ensure_future(broker.topics.delete([topic]))
    await asyncio.sleep(0)
    deletion.cancel()
    await broker.stop()
    again = await start_broker(ON_DISK)
    assert again.topics.by_name("a") is None
    assert again.topics.create("a").id != topic.id


async def test_topics_are_sorted_again_only_where_some_have_come_or_gone(broker: Broker) -> None:
    second = broker.topics.create("b", 1)
    found = broker.topics.all()
    assert broker.topics.all() is found
    first = broker.topics.create("a", 1)
    assert (found, broker.topics.all()) == ([second], [first, second])
    await broker.topics.delete([second])
    assert broker.topics.all() == [first]
