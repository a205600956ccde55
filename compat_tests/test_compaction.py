"""Compacted topics: what stays of records, tombstones and transactions, and who can read it.

Both brokers clean every 100 ms, logs that are ever so little dirty. Kafka's consumers and its own
DumpLogSegments read what is left; `cleaner-offset-checkpoint`, which both keep, says how far it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from compat_tests.admin import configure, create_topic
from compat_tests.brokers import Broker, MagnetarBroker, make_broker, running
from compat_tests.client import TIMEOUT_S, Read
from compat_tests.clients import CONFLUENT
from compat_tests.confluent_client import consumer, producer
from compat_tests.conftest import StartBroker
from compat_tests.databases import cleaned_in_database
from compat_tests.offsets import commit, committed_offset
from compat_tests.raw import Connection, batch, unique
from compat_tests.tool_box import run
from compat_tests.transaction_ends import await_end

#: A busy machine's cleaner takes its time.
CLEANED_WITHIN_S = 2 * TIMEOUT_S
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.001",
    "log.initial.task.delay.ms": "0",
}
#: Their coordinators have one log each.
ONE_SHARD = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
INTERNAL = ("__consumer_offsets", "__transaction_state")
#: Records carry their own time: a second between two rounds rolls the segment.
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "500", "index.interval.bytes": "64"}
#: By their codes in a batch's attributes.
CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
INVALID_RECORD = 87
KEYS = [b"k%d" % number for number in range(10)]
#: So far ahead of the clock, which is what markers are stamped with, that they roll nothing.
AHEAD_MS = 60_000


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(broker_kind)
    with running(make_broker(broker_kind, directory, SETTINGS)) as broker:
        yield broker


class History:
    """Rounds of records of one partition, a second apart, and what must come of them."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._bootstrap = broker.bootstrap
        self._topic = topic
        self._first_ms = int(time.time() * 1000) + AHEAD_MS
        self._round = 0
        self._values = 0
        #: The last committed record of every key.
        self.latest: dict[bytes, Read] = {}
        self._writer = producer(self._bootstrap)
        self._in_transaction = producer(
            self._bootstrap, transactional_id=unique("compaction"), linger_ms=0
        )
        self._in_transaction.init_transactions(TIMEOUT_S)

    def write(self, keys: list[bytes], *, tombstones: bool = False) -> None:
        self._keep(self._send(self._writer, keys, tombstones=tombstones))

    def write_in_transaction(self, keys: list[bytes], *, commit: bool) -> None:
        self._in_transaction.begin_transaction()
        sent = self._send(self._in_transaction, keys, tombstones=False)
        if commit:
            self._in_transaction.commit_transaction(TIMEOUT_S)
            self._keep(sent)
        else:
            self._in_transaction.abort_transaction(TIMEOUT_S)

    def _keep(self, sent: list[Read]) -> None:
        for read in sent:
            assert read.key is not None
            self.latest[read.key] = read

    def _send(self, client: Any, keys: list[bytes], *, tombstones: bool) -> list[Read]:
        self._round += 1
        reads: list[Read] = []

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            reads.append(Read(message.offset(), message.key(), message.value()))

        for key in keys:
            self._values += 1
            client.produce(
                self._topic,
                None if tombstones else b"v%d" % self._values,
                key,
                partition=0,
                timestamp=self._first_ms + 1000 * self._round,
                on_delivery=delivered,
            )
        assert client.flush(TIMEOUT_S) == 0
        return reads


def await_cleaned(broker: Broker, topic: str, offset: int, partition: int = 0) -> None:
    """Return when the log is clean up to `offset` at least."""
    deadline = time.monotonic() + CLEANED_WITHIN_S
    while (cleaned := cleaned_to(broker, topic, partition)) < offset:
        assert time.monotonic() < deadline, f"{topic} was cleaned up to {cleaned}, not {offset}"
        time.sleep(0.1)


def cleaned_to(broker: Broker, topic: str, partition: int) -> int:
    """Return up to where the log is clean, as the cleaner has noted; -1: nothing is."""
    if isinstance(broker, MagnetarBroker) and broker.storage is not None:
        return cleaned_in_database(broker.storage, topic, partition)
    # Beside the partition, which is made when it is needed.
    path = broker.partition_directory(topic, partition).parent / "cleaner-offset-checkpoint"
    text = path.read_text() if path.exists() else ""
    found = re.search(rf"^{re.escape(topic)} {partition} (\d+)$", text, re.MULTILINE)
    return -1 if found is None else int(found[1])


def write_history(broker: Broker, topic: str) -> History:
    """Duplicates, tombstones, transactions of either end; then what seals it all."""
    history = History(broker, topic)
    for _ in range(5):
        history.write(KEYS)
    history.write_in_transaction(KEYS[:4], commit=True)
    history.write_in_transaction(KEYS, commit=False)
    history.write(KEYS[8:9], tombstones=True)
    history.write_in_transaction(KEYS[4:6], commit=True)
    history.write_in_transaction(KEYS[2:8], commit=False)
    history.write([b"sealed"])
    history.write([b"end"])
    return history


@pytest.fixture(scope="module")
def cleaned(broker: Broker) -> tuple[str, History]:
    topic = unique("compacted")
    create_topic(broker.bootstrap, topic, 1, COMPACTED)
    history = write_history(broker, topic)
    await_cleaned(broker, topic, history.latest[b"sealed"].offset)
    return topic, history


def test_a_reader_sees_the_latest_of_every_key_at_its_offset(
    broker: Broker, cleaned: tuple[str, History]
) -> None:
    topic, history = cleaned
    found = CONFLUENT.consume(broker.bootstrap, topic)
    assert found == sorted(history.latest.values(), key=lambda read: read.offset)


@pytest.mark.parametrize("from_offset", [0, 7])
def test_javas_consumer_reads_a_log_with_gaps(
    broker: Broker, cleaned: tuple[str, History], from_offset: int
) -> None:
    topic, history = cleaned
    reads = sorted(history.latest.values(), key=lambda read: read.offset)
    assert from_offset < reads[0].offset, "it is to begin in a gap"
    printed = run(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition", "0"),
        *("--offset", str(from_offset), "--max-messages", str(len(reads))),
        *("--isolation-level", "read_committed", "--timeout-ms", "20000"),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
    )
    expected = [
        f"Offset:{read.offset}\t{(read.key or b'').decode()}\t{(read.value or b'null').decode()}"
        for read in reads
    ]
    assert printed.splitlines() == expected


def test_a_reader_may_begin_in_any_gap(broker: Broker, cleaned: tuple[str, History]) -> None:
    topic, history = cleaned
    reads = sorted(history.latest.values(), key=lambda read: read.offset)
    client = consumer(broker.bootstrap, isolation_level="read_committed")
    try:
        for offset in range(0, reads[-1].offset + 1, 7):
            first = next(read for read in reads if read.offset >= offset)
            assert _first_from(client, topic, offset) == first, offset
    finally:
        client.close()


def _first_from(client: Consumer, topic: str, offset: int) -> Read:
    client.assign([TopicPartition(topic, 0, offset)])
    message = client.poll(TIMEOUT_S)
    assert message is not None and message.error() is None
    found = message.offset(), message.key(), message.value()
    assert found[0] is not None and not isinstance(found[1], str)
    assert not isinstance(found[2], str)
    return Read(found[0], found[1], found[2])


def test_an_uncommitted_reader_finds_nothing_of_what_was_aborted(
    broker: Broker, cleaned: tuple[str, History]
) -> None:
    topic, history = cleaned
    found = CONFLUENT.consume(broker.bootstrap, topic, isolation="read_uncommitted")
    assert found == sorted(history.latest.values(), key=lambda read: read.offset)


def test_tombstones_go_when_their_time_is_over(broker: Broker) -> None:
    topic = unique("tombstones")
    create_topic(broker.bootstrap, topic, 1, {**COMPACTED, "delete.retention.ms": "100"})
    history = write_history(broker, topic)
    deadline = time.monotonic() + CLEANED_WITHIN_S
    while any(read.value is None for read in CONFLUENT.consume(broker.bootstrap, topic)):
        assert time.monotonic() < deadline, "the tombstone is still there"
        # Only what is dirty is cleaned, so there must be something.
        history.write([b"more"])
        time.sleep(0.2)
    latest = {key: read for key, read in history.latest.items() if read.value is not None}
    found = {read.key: read for read in CONFLUENT.consume(broker.bootstrap, topic)}
    assert found == latest


@pytest.mark.local_files("A cluster has none")
def test_kafkas_tool_reads_the_cleaned_segments(
    broker: Broker, cleaned: tuple[str, History]
) -> None:
    topic, _ = cleaned
    directory = broker.partition_directory(topic, 0)
    segments = sorted(directory.glob("*.log"))
    printed = run(
        "DumpLogSegments",
        *("--deep-iteration", "--print-data-log"),
        *("--files", ",".join(str(path) for path in segments)),
    )
    assert "isvalid: true" in printed and "isvalid: false" not in printed
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d+\]", printed)
    assert "endTxnMarker: COMMIT" in printed
    indexes = [path for path in directory.glob("*.index") if path.stat().st_size]
    for path in indexes[:1]:
        assert "passed sanity check" in run(
            "DumpLogSegments", "--index-sanity-check", "--files", str(path)
        )


def test_records_without_a_key_are_refused_by_name(
    broker: Broker, cleaned: tuple[str, History]
) -> None:
    topic, _ = cleaned
    reason = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
    request = ProduceRequest[9](
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[(topic, [(0, batch([b"v1", b"v2"]))])],
    )
    with Connection(broker.bootstrap) as connection:
        answer = connection.call(request, ProduceResponse)
    (refused,) = answer.responses[0].partition_responses
    assert (refused.error_code, refused.base_offset) == (INVALID_RECORD, -1)
    named = [(one.batch_index, one.batch_index_error_message) for one in refused.record_errors]
    assert named == [(0, reason), (1, reason)]
    assert refused.error_message.startswith("One or more records have been rejected due to 2")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_batches_are_stored_in_the_topics_codec(broker: Broker, codec: str) -> None:
    topic = unique("codec")
    create_topic(broker.bootstrap, topic, 1, {"compression.type": codec})
    pairs = [(b"k%d" % number, b"v%d" % number * 20) for number in range(50)]
    CONFLUENT.produce(broker.bootstrap, topic, pairs)
    CONFLUENT.produce(broker.bootstrap, topic, pairs, codec="zstd")
    with Connection(broker.bootstrap) as connection:
        first = bytes(connection.fetch(topic, 0).records)
    assert first[22] & 0x07 == CODECS.index(codec)
    read = [(read.key, read.value) for read in CONFLUENT.consume(broker.bootstrap, topic)]
    assert read == pairs * 2


def test_coordinators_replay_from_cleaned_logs(broker_kind: str, start_broker: StartBroker) -> None:
    """Offsets committed in transactions and without, and the transactions' states, after `kill -9`:
    what they stood on before is gone from their logs."""
    broker = start_broker(broker_kind, SETTINGS | ONE_SHARD)
    topic = unique("cleaned-offsets")
    create_topic(broker.bootstrap, topic, 1)
    client = producer(broker.bootstrap, transactional_id=topic, linger_ms=0)
    client.init_transactions(TIMEOUT_S)
    group = consumer(broker.bootstrap, "plain")
    in_transactions = consumer(broker.bootstrap, "transactional")
    commit(group, TopicPartition(topic, 0, 1))
    client.begin_transaction()
    client.abort_transaction(TIMEOUT_S)
    configure(broker, *INTERNAL, segment_ms="100")
    for number in range(2, 7):
        client.begin_transaction()
        client.produce(topic, b"v%d" % number)
        offsets = [TopicPartition(topic, 0, number)]
        metadata = in_transactions.consumer_group_metadata()
        client.send_offsets_to_transaction(offsets, metadata, TIMEOUT_S)
        if number % 2 == 0:
            client.commit_transaction(TIMEOUT_S)
        else:
            client.abort_transaction(TIMEOUT_S)
        commit(group, TopicPartition(topic, 0, number))
        time.sleep(0.15)  # Rolling goes by the clock.
    for internal in INTERNAL:
        await_cleaned(broker, internal, 4)
    broker.kill()
    broker.start()
    for name in ("plain", "transactional"):
        assert committed_offset(broker.bootstrap, name, topic) == 6
    again = producer(broker.bootstrap, transactional_id=topic, linger_ms=0)
    again.init_transactions(TIMEOUT_S)
    again.begin_transaction()
    again.produce(topic, b"again")
    again.commit_transaction(TIMEOUT_S)
    await_end(broker.bootstrap, topic)
    values = [read.value for read in CONFLUENT.consume(broker.bootstrap, topic)]
    assert values == [b"v2", b"v4", b"v6", b"again"]
    group.close()
    in_transactions.close()
