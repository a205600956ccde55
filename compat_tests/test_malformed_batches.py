"""Batches that no client library sends, to a topic that is deleted and to one that is compacted.

Where magnetar answers otherwise than Apache Kafka, the table says why: Kafka repairs the batch, or
stores what no consumer can read, or has no error for it (UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from compat_tests.batch_frames import GZIP, batch_of, deltas, gzipped, record, three, varint
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeTopic
from compat_tests.raw import Connection

NONE = 0
UNKNOWN = -1
CORRUPT_MESSAGE = 2
INVALID_TIMESTAMP = 32
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87

NOW_MS = int(time.time() * 1000)
AHEAD_MS = 2 * 3_600_000
WHOLE = gzipped(three())
POLICIES = ("delete", "compact")


class Kind(NamedTuple):
    """A batch by its body and what its header says; what Kafka answers, and magnetar."""

    body: bytes
    announced: int = 3
    fields: Mapping[str, Any] = {}
    kafka: int = INVALID_RECORD
    magnetar: int | None = None  # as Kafka
    #: The same where the records are compressed; None: as the above.
    kafka_gzip: int | None = None


def swapped(data: bytes, at: int) -> bytes:
    """Return `data` with all bits of one byte turned."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


#: What lies there as it is, and compressed.
KINDS: dict[str, Kind] = {
    "as it should be": Kind(three(), kafka=NONE),
    "with headers": Kind(three(1, headers=b"\x04\x02h\x02v\x02i\x01"), kafka=NONE),
    # Counts.
    "more than announced": Kind(three(), 2),
    "fewer than announced": Kind(three(), 4),
    "one of two announced": Kind(record(0), 2),
    "five of three announced": Kind(deltas(range(5))),
    "billions announced": Kind(three(), 2**31 - 1),
    "none announced": Kind(three(), 0),
    "none announced, delta 0": Kind(three(), 0, {"last_offset_delta": 0}),
    "less than none announced": Kind(three(), -1),
    "less than none announced, delta right": Kind(three(), -1, {"last_offset_delta": 2}),
    "last offset delta low": Kind(three(), 3, {"last_offset_delta": 1}),
    "last offset delta high": Kind(three(), 3, {"last_offset_delta": 3}),
    "count low": Kind(three(), 2, {"last_offset_delta": 2}),
    "count high": Kind(three(), 4, {"last_offset_delta": 2}),
    "no records": Kind(b""),
    # The end.
    "zero behind": Kind(three() + b"\0"),
    "byte behind": Kind(three() + b"\xff"),
    "half a record behind": Kind(three() + record(3)[:4]),
    "last record cut": Kind(three()[:-1]),
    # Lengths. Kafka believes the fields of a compressed record, and not its length.
    "length far too long": Kind(three(1, length=100), kafka_gzip=NONE, magnetar=INVALID_RECORD),
    "length too long": Kind(three(1, length=13), kafka_gzip=NONE, magnetar=INVALID_RECORD),
    "length too short": Kind(three(1, length=11), kafka_gzip=NONE, magnetar=INVALID_RECORD),
    "last length too long": Kind(three(2, length=13), kafka_gzip=NONE, magnetar=INVALID_RECORD),
    "negative length": Kind(three(1, length=-1)),
    "key far too long": Kind(three(1, key_length=100)),
    "key too long": Kind(three(1, key_length=4)),
    "negative key length": Kind(three(1, key_length=-2)),
    "value far too long": Kind(three(1, value_length=100)),
    "value too long": Kind(three(1, value_length=6)),
    "null value with bytes": Kind(three(1, value_length=-1)),
    "negative value length": Kind(
        three(1, value=None, value_length=-2), kafka=NONE, magnetar=INVALID_RECORD
    ),
    "header that is not there": Kind(three(1, headers=b"\x02")),
    "negative count of headers": Kind(three(1, headers=b"\x01")),
    "a thousand headers": Kind(three(1, headers=varint(1000))),
    "header without a key": Kind(three(1, headers=b"\x02\x01\x00")),
    "header that is no UTF-8": Kind(three(1, headers=b"\x02\x04\xff\xfe\x00"), kafka=NONE),
    "no count of headers": Kind(three(1, headers=b"")),
    "attributes of a record": Kind(three(1, attributes=1), kafka=NONE),
    # Offset deltas. Kafka stores them, and cannot write them anew for a compressed batch.
    "a gap": Kind(deltas([0, 1, 3]), kafka=NONE, kafka_gzip=UNKNOWN, magnetar=INVALID_RECORD),
    "from one": Kind(deltas([1, 2, 3]), kafka=NONE, kafka_gzip=UNKNOWN, magnetar=INVALID_RECORD),
    "one twice": Kind(deltas([0, 1, 1]), kafka=NONE, kafka_gzip=UNKNOWN, magnetar=INVALID_RECORD),
    "downwards": Kind(deltas([2, 1, 0]), kafka=NONE, kafka_gzip=UNKNOWN, magnetar=INVALID_RECORD),
    # Kafka writes the right one.
    "max timestamp ahead": Kind(
        three(),
        fields={"max_timestamp_ms": NOW_MS + AHEAD_MS},
        kafka=NONE,
        magnetar=INVALID_TIMESTAMP,
    ),
    "control records": Kind(three(), fields={"attributes": 0x20}),
}
#: Compressed streams, and what says that it is one.
STREAMS: dict[str, Kind] = {
    "rotten tail": Kind(swapped(WHOLE, -12), kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "wrong CRC of the stream": Kind(swapped(WHOLE, -8), kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "cut": Kind(WHOLE[:-12], kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "cut in its trailer": Kind(WHOLE[:-4], kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "garbage": Kind(b"\xff" * 40, kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "nothing": Kind(b"", kafka=UNKNOWN, magnetar=INVALID_RECORD),
    "of nothing": Kind(gzipped(b"")),
}


def produce(connection: Connection, topic: str, records: bytes) -> Any:
    """Return the partition's whole answer."""
    request = ProduceRequest[11](
        transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[(topic, [(0, records)])]
    )
    (answer,) = connection.call(request, ProduceResponse).responses[0].partition_responses
    return answer


@pytest.mark.parametrize("policy", POLICIES)
def test_malformed_batches_are_refused(broker: Broker, topic: MakeTopic, policy: str) -> None:
    orders = topic("orders", cleanup_policy=policy)
    end, found, expected = 0, {}, {}
    with Connection(broker.bootstrap) as connection:
        for name, batch, kind in _batches():
            answer = produce(connection, orders, batch)
            assert [each.batch_index for each in answer.record_errors] == [], name
            found[name] = answer.error_code
            expected[name] = _code(broker, kind, is_compressed=name.startswith("gzip"))
            end += 3 if answer.error_code == NONE else 0
            # What is refused leaves nothing behind.
            assert connection.list_offset(orders, -1)[2] == end, name
    assert found == expected


def _batches() -> Sequence[tuple[str, bytes, Kind]]:
    made = []
    for name, kind in KINDS.items():
        made.append((name, batch_of(kind.body, kind.announced, NOW_MS, **kind.fields), kind))
        fields = {**kind.fields, "attributes": kind.fields.get("attributes", 0) | GZIP}
        batch = batch_of(gzipped(kind.body), kind.announced, NOW_MS, **fields)
        made.append((f"gzip, {name}", batch, kind))
    for name, kind in STREAMS.items():
        batch = batch_of(kind.body, kind.announced, NOW_MS, attributes=GZIP)
        made.append((f"gzip stream, {name}", batch, kind))
    return made


def _code(broker: Broker, kind: Kind, *, is_compressed: bool) -> int:
    if broker.kind == "magnetar" and kind.magnetar is not None:
        return kind.magnetar
    return kind.kafka_gzip if is_compressed and kind.kafka_gzip is not None else kind.kafka


@pytest.mark.parametrize("attributes", [0, GZIP])
@pytest.mark.parametrize(
    ("body", "by_policy"),
    [
        pytest.param(
            three(1, key=None), [(NONE, []), (INVALID_RECORD, [1])], id="no key in the middle"
        ),
        pytest.param(
            b"".join(record(place, key=None) for place in range(3)),
            [(NONE, []), (INVALID_RECORD, [0, 1, 2])],
            id="no key at all",
        ),
        pytest.param(
            three(2, timestamp_delta=AHEAD_MS), [(INVALID_TIMESTAMP, [2])] * 2, id="too far ahead"
        ),
        pytest.param(
            three(1, timestamp_delta=AHEAD_MS, key=None),
            [(INVALID_TIMESTAMP, [1]), (INVALID_RECORD, [1])],
            id="too far ahead and without a key",
        ),
        pytest.param(
            record(0, key=None) + record(1, timestamp_delta=AHEAD_MS) + record(2),
            [(INVALID_TIMESTAMP, [1]), (INVALID_TIMESTAMP, [0, 1])],
            id="too far ahead behind one without a key",
        ),
        pytest.param(three(1, timestamp_delta=-1 - NOW_MS), [(NONE, [])] * 2, id="no timestamp"),
        pytest.param(three(1, timestamp_delta=-5 - NOW_MS), [(NONE, [])] * 2, id="before 1970"),
        pytest.param(
            three(1, key=None) + b"\0", [(INVALID_RECORD, [])] * 2, id="no key, and a byte behind"
        ),
    ],
)
def test_a_refusal_names_the_records(
    broker: Broker,
    topic: MakeTopic,
    attributes: int,
    body: bytes,
    by_policy: Sequence[tuple[int, list[int]]],
) -> None:
    records = gzipped(body) if attributes else body
    batch = batch_of(records, 3, NOW_MS, attributes=attributes)
    with Connection(broker.bootstrap) as connection:
        for policy, (code, indexes) in zip(POLICIES, by_policy, strict=True):
            answer = produce(connection, topic("orders", cleanup_policy=policy), batch)
            assert answer.error_code == code
            assert [each.batch_index for each in answer.record_errors] == indexes
            if indexes:
                assert answer.error_message.startswith("One or more records have been rejected")
            if code == INVALID_TIMESTAMP:
                error = answer.record_errors[-1].batch_index_error_message
                assert error.startswith(f"Timestamp {NOW_MS + AHEAD_MS} of message with offset ")
            elif indexes:
                error = answer.record_errors[0].batch_index_error_message
                assert error.startswith("Compacted topic cannot accept message without key in top")


def test_what_says_how_a_batch_is_compressed(broker: Broker, topic: MakeTopic) -> None:
    orders = topic("orders")
    unknown = UNSUPPORTED_COMPRESSION_TYPE if broker.kind == "magnetar" else UNKNOWN
    with Connection(broker.bootstrap) as connection:
        answer = produce(connection, orders, batch_of(three(), 3, NOW_MS, attributes=5))
        assert answer.error_code == unknown
        assert produce(connection, orders, batch_of(WHOLE, 3, NOW_MS)).error_code == INVALID_RECORD
        damaged = swapped(batch_of(WHOLE, 3, NOW_MS, attributes=GZIP), -1)
        assert produce(connection, orders, damaged).error_code == CORRUPT_MESSAGE
