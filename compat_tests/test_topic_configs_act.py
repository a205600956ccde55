"""Topic configs that change while a topic is written to: each acts on the next batch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TopicPartition

from compat_tests.admin import configure
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.confluent_client import consumer
from compat_tests.conftest import MakeTopic
from compat_tests.raw import Connection, batch

NONE, INVALID_TIMESTAMP, INVALID_RECORD, MESSAGE_TOO_LARGE = 0, 32, 87, 10
RECORD_LIST_TOO_LARGE = 18
HOUR_MS = 3_600_000
#: For old records: retention looks every five minutes, in the middle of a test too.
KEPT = {"retention_ms": "-1"}


def append(broker: Broker, topic: str, size: int = 10, timestamp_ms: int | None = None) -> int:
    """Append one batch of one record and return the error code."""
    records = batch([b"x" * size], timestamp_ms=timestamp_ms)
    with Connection(broker.bootstrap) as connection:
        return connection.produce(topic, records).error_code


def segments(broker: Broker, topic: str) -> list[Path]:
    return sorted(broker.partition_directory(topic, 0).glob("*.log"))


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.local_files("Segments of a cluster are rows")
def test_segments_roll_by_size_age_and_index(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", max_message_bytes="2000000")
    for _ in range(3):
        assert append(broker, orders, 700_000) == NONE
    assert len(segments(broker, orders)) == 1
    configure(broker, orders, segment_bytes=str(1 << 20))
    for _ in range(2):
        assert append(broker, orders, 700_000) == NONE
    assert [int(path.stem) for path in segments(broker, orders)] == [0, 3, 4]
    configure(broker, orders, segment_bytes=str(1 << 30), segment_ms="50")
    time.sleep(0.06)
    assert append(broker, orders) == NONE
    assert [int(path.stem) for path in segments(broker, orders)] == [0, 3, 4, 5]
    # Kafka's index is as large as was asked when its segment began.
    configure(broker, orders, index_interval_bytes="1", segment_index_bytes="64")
    time.sleep(0.06)
    assert append(broker, orders) == NONE
    configure(broker, orders, segment_ms=str(HOUR_MS))
    before = len(segments(broker, orders))
    for _ in range(40):
        assert append(broker, orders) == NONE
    assert len(segments(broker, orders)) - before >= 3


@pytest.mark.local_files("Segments of a cluster are rows")
def test_segments_of_kafkas_own_tests_have_no_least_size(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", internal_segment_bytes="500", segment_bytes=str(1 << 20))
    for _ in range(3):
        assert append(broker, orders, 300) == NONE
    assert [int(path.stem) for path in segments(broker, orders)] == [0, 1, 2]
    assert append(broker, orders, 500) == RECORD_LIST_TOO_LARGE
    configure(broker, orders, compression_type="gzip")
    assert append(broker, orders, 500) == NONE
    configure(broker, orders, compression_type="producer", internal_segment_bytes="2000")
    assert append(broker, orders, 500) == NONE
    assert [int(path.stem) for path in segments(broker, orders)] == [0, 1, 2]


@pytest.mark.local_files("A cluster has no index files")
def test_the_index_is_as_dense_as_is_asked(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", **KEPT)
    configure(broker, orders, index_interval_bytes="1", segment_ms="1")
    for timestamp_ms in (1000, 2000):
        assert append(broker, orders, timestamp_ms=timestamp_ms) == NONE
    configure(broker, orders, segment_ms=str(HOUR_MS))
    for _ in range(10):
        assert append(broker, orders, timestamp_ms=2000) == NONE
    last = segments(broker, orders)[-1]
    configure(broker, orders, segment_ms="1")
    assert append(broker, orders, timestamp_ms=4000) == NONE
    index = last.with_suffix(".index").read_bytes()
    # Of 8 bytes each; a file that is written to may end with zeros.
    entries = [index[at : at + 8] for at in range(0, len(index), 8)]
    assert 8 <= len([entry for entry in entries if any(entry)]) <= 11


def test_time_is_the_brokers_once_it_is_asked_to_be(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders", **KEPT)
    began_ms = now_ms()
    assert append(broker, orders, timestamp_ms=5000) == NONE
    configure(broker, orders, message_timestamp_type="LogAppendTime")
    assert append(broker, orders, timestamp_ms=5000) == NONE
    client = consumer(broker.bootstrap, check_crcs=True)
    client.assign([TopicPartition(orders, 0, 0)])
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < 2 and time.monotonic() < deadline:
        message = client.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.timestamp())
    client.close()
    assert found[0] == (TIMESTAMP_CREATE_TIME, 5000)
    kind, appended_ms = found[1]
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert began_ms <= appended_ms <= now_ms()


def test_timestamps_stay_within_their_bounds(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    assert append(broker, orders, timestamp_ms=5000) == NONE
    assert append(broker, orders, timestamp_ms=now_ms() + HOUR_MS // 2) == NONE
    configure(
        broker,
        orders,
        message_timestamp_before_max_ms="60000",
        message_timestamp_after_max_ms="60000",
    )
    assert append(broker, orders, timestamp_ms=5000) == INVALID_TIMESTAMP
    assert append(broker, orders, timestamp_ms=now_ms() + HOUR_MS // 2) == INVALID_TIMESTAMP
    assert append(broker, orders, timestamp_ms=now_ms()) == NONE


def test_a_smaller_batch_is_asked_for_and_a_key(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    assert append(broker, orders, 3000) == NONE
    configure(broker, orders, max_message_bytes="2000")
    assert append(broker, orders, 3000) == MESSAGE_TOO_LARGE
    assert append(broker, orders, 1000) == NONE
    configure(broker, orders, cleanup_policy="compact")
    assert append(broker, orders) == INVALID_RECORD


@pytest.mark.parametrize(
    "configs",
    [
        # As many replicas as there are can be in sync: more are not asked for.
        {"min_insync_replicas": "3"},
        {"flush_messages": "1", "flush_ms": "1"},
        {"preallocate": "true", "segment_jitter_ms": "10"},
        {"file_delete_delay_ms": "0", "unclean_leader_election_enable": "true"},
    ],
)
def test_what_changes_nothing_a_client_sees(
    broker: Broker, topic: MakeTopic, configs: dict[str, str]
) -> None:
    orders = topic("orders")
    configure(broker, orders, **configs)
    assert append(broker, orders) == NONE
