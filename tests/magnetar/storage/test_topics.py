"""Topics: names and counts as Kafka takes them; made, grown, and there again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.broker import Broker
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from magnetar.storage.whole_changes import CATALOG
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
    broker.topics.configs.replace(topic, larger)
    assert log.config.segment_bytes == 5 << 20
    broker.topics.configs.replace(topic, {**larger, "segment.bytes": str(1 << 20)})
    assert log.config.segment_bytes == 1 << 20


async def test_coordinators_may_write_batches_of_a_mebibyte_whatever_is_set(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(ON_DISK)
    for name in (CONSUMER_OFFSETS, "a"):
        topic = broker.topics.ensure(name)
        broker.topics.configs.replace(topic, {**topic.configs, "max.message.bytes": "10"})
        assert topic.settings.max_message_bytes == 10
    for _ in range(2):
        limits = [
            broker.topics.partition(name, 0).config.max_message_bytes
            for name in (CONSUMER_OFFSETS, "a")
        ]
        assert limits == [1_048_588, 10]
        await broker.stop()
        broker = await start_broker(ON_DISK)


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
    await second.topics.deletion.perform([former])
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
    await first.topics.deletion.perform([deleted])
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


async def test_one_data_directory_serves_one_broker(start_broker: StartBroker) -> None:
    from magnetar.config.load import ConfigError

    await start_broker(ON_DISK)
    with pytest.raises(ConfigError, match="in use"):
        await start_broker(ON_DISK)


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
    deletion = asyncio.ensure_future(topics.deletion.perform([change.result()]))
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
    deletion, again = (asyncio.ensure_future(topics.deletion.perform([topic])) for _ in range(2))
    await asyncio.sleep(0.01)
    assert topics.by_name("a") is topic, "its deletion is not durable yet"
    with pytest.raises(KafkaError) as refused:
        topics.check_growth("a", 60)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        topics.configs.replace(topic, {})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    catalog_is_free.set()
    assert (await deletion, await again) == ([topic.id], [])


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


async def test_a_client_that_goes_leaves_no_half_a_topic(start_broker: StartBroker) -> None:
    broker = await start_broker(ON_DISK)
    row = broker.topics.new_row("a", 50, 1, {})
    creation = asyncio.ensure_future(broker.topics.create_in_turns(row))
    await asyncio.sleep(0)
    creation.cancel()
    await broker.topics.stop()
    topic = broker.topics.by_name("a")
    assert topic is not None and len(topic.partitions) == 50
    deletion = asyncio.ensure_future(broker.topics.deletion.perform([topic]))
    await asyncio.sleep(0)
    deletion.cancel()
    await broker.stop()
    again = await start_broker(ON_DISK)
    assert again.topics.by_name("a") is None
    assert again.topics.create("a").id != topic.id
