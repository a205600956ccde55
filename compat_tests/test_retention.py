"""What retention deletes and compaction waits for: each config of a topic acts, and when it is set.

Both brokers look at their logs several times a second. Beside a topic that is to stay as it is
stands one that changes, to show that the broker has looked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from compat_tests.admin import configure, create_topic
from compat_tests.batch_frames import batch_of, record
from compat_tests.brokers import Broker, make_broker, running
from compat_tests.clients import CONFLUENT
from compat_tests.confluent_client import producer
from compat_tests.raw import Connection, batch, unique
from compat_tests.waiting import eventually

EARLIEST, OFFSET_OUT_OF_RANGE = -2, 1
HOUR_MS = 3_600_000
SETTINGS = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
}
#: Batches lie further apart than this, and so in segments of their own.
APART = {"segment.ms": str(HOUR_MS // 4)}
KEPT = "-1"


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(broker_kind)
    with running(make_broker(broker_kind, directory, SETTINGS)) as broker:
        yield broker


def create(broker: Broker, base: str, **configs: str) -> str:
    """Create a topic whose batches each begin a segment; underscores stand for dots."""
    topic = unique(base)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    create_topic(broker.bootstrap, topic, 1, {**APART, **named})
    return topic


def append(broker: Broker, topic: str, *ages_ms: int, size: int = 10) -> None:
    """Append a batch of one record for each age."""
    now_ms = int(time.time() * 1000)
    with Connection(broker.bootstrap) as connection:
        for age_ms in ages_ms:
            records = batch([b"x" * size], timestamp_ms=now_ms - age_ms)
            assert connection.produce(topic, records).error_code == 0


def start_of(broker: Broker, topic: str) -> int:
    with Connection(broker.bootstrap) as connection:
        return connection.list_offset(topic, EARLIEST)[2]


def await_check(broker: Broker) -> None:
    """Return when retention has looked at what was there before."""
    canary = create(broker, "canary", retention_ms="1000")
    append(broker, canary, HOUR_MS)
    eventually(lambda: start_of(broker, canary) == 1)


def test_old_segments_go_once_they_may(broker: Broker) -> None:
    orders = create(broker, "orders", retention_ms=KEPT)
    append(broker, orders, 5 * HOUR_MS, 4 * HOUR_MS, 3 * HOUR_MS, 0)
    await_check(broker)
    assert start_of(broker, orders) == 0
    configure(broker, orders, retention_ms=str(7 * HOUR_MS // 2))
    eventually(lambda: start_of(broker, orders) == 2)
    # Whole segments, by their newest record; the active one too, when all of it is old.
    configure(broker, orders, retention_ms=str(HOUR_MS))
    eventually(lambda: start_of(broker, orders) == 3)
    with Connection(broker.bootstrap) as connection:
        below, at_start, end, beyond = (connection.fetch(orders, each) for each in (2, 3, 4, 5))
    assert below.error_code == beyond.error_code == OFFSET_OUT_OF_RANGE
    assert (below.high_watermark, below.log_start_offset) == (-1, -1)
    assert (at_start.error_code, at_start.log_start_offset, end.error_code) == (0, 3, 0)
    assert at_start.records and not end.records


def test_an_active_segment_that_is_old_goes_too(broker: Broker) -> None:
    orders = create(broker, "orders", retention_ms=str(HOUR_MS))
    append(broker, orders, 2 * HOUR_MS)
    eventually(lambda: start_of(broker, orders) == 1)
    append(broker, orders, 0)
    assert [each.offset for each in CONFLUENT.consume(broker.bootstrap, orders)] == [1]


def test_a_log_is_no_larger_than_it_may_be(broker: Broker) -> None:
    orders = create(broker, "orders", segment_bytes="1048576")
    append(broker, orders, *[0] * 5, size=700_000)
    await_check(broker)
    assert start_of(broker, orders) == 0
    # Segments of 700 kB: what is left is this much at least.
    configure(broker, orders, retention_bytes="1500000")
    eventually(lambda: start_of(broker, orders) == 2)
    await_check(broker)
    assert start_of(broker, orders) == 2


def test_what_is_only_compacted_does_not_grow_old(broker: Broker) -> None:
    never = {"min_compaction_lag_ms": str(2**62)}
    orders = create(broker, "orders", retention_ms="1000", cleanup_policy="compact", **never)
    write(broker, orders, 5, b"a", b"b")
    await_check(broker)
    assert start_of(broker, orders) == 0
    configure(broker, orders, cleanup_policy="compact,delete")
    eventually(lambda: start_of(broker, orders) > 0)


def write(broker: Broker, topic: str, hours: int, *values: bytes) -> None:
    """Write records with one key, an hour apart; the first so many hours ago."""
    now_ms = int(time.time() * 1000)
    for age, value in enumerate(values):
        client = producer(broker.bootstrap)
        client.produce(topic, value, b"k", partition=0, timestamp=now_ms + (age - hours) * HOUR_MS)
        assert client.flush(30) == 0


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [read.value for read in CONFLUENT.consume(broker.bootstrap, topic)]


def await_compacted(broker: Broker, topic: str) -> None:
    eventually(lambda: b"old" not in values(broker, topic))


@pytest.mark.parametrize(
    ("held", "let_go"),
    [
        ({"cleanup_policy": "delete", "retention_ms": KEPT}, {"cleanup_policy": "compact"}),
        ({"min_compaction_lag_ms": str(24 * HOUR_MS)}, {"min_compaction_lag_ms": "0"}),
        # Not more than all of a log, which is what is dirty of one that was never cleaned.
        ({"min_cleanable_dirty_ratio": "1.0"}, {"min_cleanable_dirty_ratio": "0.5"}),
        ({"min_cleanable_dirty_ratio": "1.0"}, {"max_compaction_lag_ms": "1000"}),
    ],
    ids=["cleanup.policy", "min.compaction.lag.ms", "dirty ratio", "max.compaction.lag.ms"],
)
def test_a_log_is_compacted_when_its_configs_let_it(
    broker: Broker, held: dict[str, str], let_go: dict[str, str]
) -> None:
    base = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    waiting = create(broker, "waiting", **(base | held))
    other = create(broker, "other", **base)
    for topic in (waiting, other):
        write(broker, topic, 3, b"old", b"new", b"active")
    await_compacted(broker, other)
    assert values(broker, waiting) == [b"old", b"new", b"active"]
    configure(broker, waiting, **let_go)
    await_compacted(broker, waiting)
    assert values(broker, waiting)[-1] == b"active"


@pytest.mark.parametrize("ahead_ms", [None, HOUR_MS // 2], ids=["no time", "to come"])
def test_a_head_whose_time_says_nothing_holds_up_no_compaction(
    broker: Broker, ahead_ms: int | None
) -> None:
    now_ms = int(time.time() * 1000)
    head_ms = -1 if ahead_ms is None else now_ms + ahead_ms
    overdue = {"max_compaction_lag_ms": str(HOUR_MS), "min_cleanable_dirty_ratio": "1.0"}
    # Two batches fill a segment.
    orders = create(broker, "orders", cleanup_policy="compact", segment_bytes="1048576", **overdue)
    times_ms = [head_ms, *[now_ms - 2 * HOUR_MS] * 4]
    with Connection(broker.bootstrap) as connection:
        for number, timestamp_ms in enumerate(times_ms):
            body = record(0, value=b"%d" % number + b"x" * 520_000)
            answer = connection.produce(orders, batch_of(body, 1, timestamp_ms))
            assert answer.error_code == 0
    eventually(lambda: [value[:1] for value in values(broker, orders) if value] == [b"3", b"4"])


@pytest.mark.local_files("A cluster replaces rows")
def test_replaced_files_stay_for_a_while(broker: Broker) -> None:
    """Kafka renames what it deletes; so a reader of the file can finish."""
    kept = create(broker, "kept", cleanup_policy="compact", file_delete_delay_ms=str(HOUR_MS))
    gone = create(broker, "gone", cleanup_policy="compact", file_delete_delay_ms="0")
    for topic in (kept, gone):
        write(broker, topic, 3, b"old", b"new", b"active")
        configure(broker, topic, min_cleanable_dirty_ratio="0.01")
    for topic in (kept, gone):
        await_compacted(broker, topic)

    def put_aside(topic: str) -> list[str]:
        directory = broker.partition_directory(topic, 0)
        return [path.name for path in directory.glob("*.log.deleted")]

    eventually(lambda: put_aside(kept) and not put_aside(gone))


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_transaction_may_lose_its_beginning_while_it_is_open(
    broker: Broker, commit: bool
) -> None:
    orders = unique("orders")
    create_topic(broker.bootstrap, orders)
    with Connection(broker.bootstrap) as connection:
        identity = connection.producer(unique("txn"))
        assert connection.produce(orders, batch([b"0", b"1"])).error_code == 0
        assert connection.add_partitions(identity, orders) == [0]
        inside = batch([b"2", b"3", b"4", b"5"], identity, 0)
        produced = connection.produce(orders, inside, transactional_id=identity.transactional_id)
        assert produced.base_offset == 2
        assert connection.produce(orders, batch([b"6"])).error_code == 0
        delete_records(connection, orders, 4)
        open_yet = connection.fetch(orders, 4, isolation=1)
        assert (open_yet.error_code, open_yet.log_start_offset, open_yet.records) == (0, 4, b"")
        assert connection.end(identity, commit=commit).error_code == 0
    expected = [b"4", b"5", b"6"] if commit else [b"6"]
    eventually(lambda: values(broker, orders) == expected)


def delete_records(connection: Connection, topic: str, offset: int) -> None:
    request = DeleteRecordsRequest[2](topics=[(topic, [(0, offset)])], timeout_ms=10_000)
    answer = connection.call(request, DeleteRecordsResponse)
    (result,) = answer.topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, offset)
