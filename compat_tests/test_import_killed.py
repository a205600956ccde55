"""A Kafka that was killed is imported: a log that its cleaner has thinned out, a group of KIP-848.

Kafka's cleaner leaves segments empty and offsets out between two of them; and it was not asked to
stop. Its consumer goes on at magnetar, as the member that it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer

from compat_tests import confluent_client
from compat_tests.admin import configure, create_topic
from compat_tests.brokers import Broker, make_broker, running
from compat_tests.client import Read
from compat_tests.clients import CONFLUENT
from compat_tests.command_line import output, printed
from compat_tests.waiting import eventually

pytestmark = pytest.mark.local_files("Into a cluster: test_cluster_import")
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "0"}
#: Cleaned as a whole once it is all there: each of its segments by itself, for they are full.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "1.0",
}
KEYS = 7


class Moved(NamedTuple):
    """What was in Kafka, the magnetar that has it now, and a consumer that lived through it."""

    latest: list[Read]
    magnetar: Broker
    consumer: Consumer
    members: Any


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    kafka = make_broker("kafka", tmp_path_factory.mktemp("before"), SETTINGS)
    after = make_broker("magnetar", tmp_path_factory.mktemp("after"))
    after.port = kafka.port
    with running(kafka):
        moved = _move(kafka, after)
        with running(after):
            yield moved


def _is_empty(segment: Path) -> bool:
    try:
        return segment.stat().st_size == 0
    except FileNotFoundError:
        return False  # Kafka's cleaner is about to rename the new one.


def _is_cleaned(kafka: Broker) -> bool:
    """Whether Kafka's cleaner has been through all of the log, as it then writes down."""
    checkpoint = kafka.log_directory / "cleaner-offset-checkpoint"
    return checkpoint.exists() and "\nlatest 0 " in checkpoint.read_text()


def _move(kafka: Broker, after: Broker) -> Moved:
    bootstrap = kafka.bootstrap
    create_topic(bootstrap, "latest", 1, COMPACTED)
    writer = confluent_client.producer(bootstrap, linger_ms=0, batch_num_messages=10)
    for begin in range(0, 3000, 100):
        numbers = range(begin, begin + 100)
        confluent_client.send(
            writer, "latest", [(b"k%d" % (n % KEYS), b"%d " % n * 200) for n in numbers]
        )
    configure(kafka, "latest", min_cleanable_dirty_ratio="0.01")
    empty = kafka.partition_directory("latest", 0) / f"{0:020}.log"
    eventually(lambda: _is_empty(empty))
    eventually(lambda: _is_cleaned(kafka))
    create_topic(bootstrap, "orders")
    confluent_client.send(confluent_client.producer(bootstrap), "orders", _pairs(range(10)))
    consumer = confluent_client.consumer(bootstrap, "readers", group_protocol="consumer")
    consumer.subscribe(["orders"])
    assert len(_read(consumer, 10)) == 10
    consumer.commit(asynchronous=False)
    members = _members(kafka)
    latest = CONFLUENT.consume(bootstrap, "latest")
    kafka.kill()
    source, target = str(kafka.log_directory), str(after.log_directory)
    output(after, "import", source, "--data-dir", target)
    return Moved(latest, after, consumer, members)


def _pairs(numbers: range) -> list[tuple[bytes | None, bytes | None]]:
    return [(None, b"%d" % number) for number in numbers]


def _read(consumer: Consumer, count: int) -> list[bytes]:
    seen: list[bytes] = []

    def has_all() -> bool:
        seen.extend(each.value() or b"" for each in consumer.consume(count - len(seen), 1.0))
        return len(seen) == count

    eventually(has_all)
    return seen


def _members(broker: Broker) -> list[str]:
    (group,) = printed(broker, "groups", "describe", "readers")
    return [member["member_id"] for member in group["members"]]


def test_every_record_that_was_left_is_there(moved: Moved) -> None:
    assert moved.latest[0].offset > 0
    assert {read.key for read in moved.latest} == {b"k%d" % number for number in range(KEYS)}
    assert CONFLUENT.consume(moved.magnetar.bootstrap, "latest") == moved.latest
    moved.magnetar.restart(clean=False)
    assert CONFLUENT.consume(moved.magnetar.bootstrap, "latest") == moved.latest


def test_a_consumer_group_goes_on_with_its_members(moved: Moved) -> None:
    writer = confluent_client.producer(moved.magnetar.bootstrap)
    confluent_client.send(writer, "orders", _pairs(range(10, 20)))
    assert _read(moved.consumer, 10) == [b"%d" % number for number in range(10, 20)]
    assert _members(moved.magnetar) == moved.members != []
    moved.consumer.close()
