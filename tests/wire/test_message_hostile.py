"""Whatever the bytes: decoding raises WireError or nothing, and allocates what they justify."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.message_strategies import CASES, case_id, few, messages
from wire.decoder import TAGGED_FIELDS_MAX
from wire.errors import TooManyElements, WireError
from wire.message import Message
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.header import RequestHeader
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

#: Lengths and counts that lie: -1, -2, the largest and smallest int32, varints of 31 bits and more.
LIES = (
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80",
)


def decode_or_refuse(message: type[Message], version: int, frame: bytes) -> None:
    """Decode; what is accepted must be a message that can be written again, or is refused there."""
    try:
        value = message.decode(memoryview(frame), version)
    except WireError:
        return
    again = value.encode(version)  # compared as bytes: a NaN is not equal to itself
    assert message.decode(again, version).encode(version) == again


def mutations(frame: bytes, rng: random.Random) -> list[bytes]:
    """Cut short, bytes flipped, lies written over and put in, random bytes appended."""
    changed = [frame[: rng.randrange(len(frame) + 1)] for _ in range(3)]
    for lie in LIES:
        at = rng.randrange(len(frame) + 1)
        changed.append(frame[:at] + lie + frame[at + len(lie) :])
        changed.append(frame[:at] + lie + frame[at:])
    for _ in range(6):
        flipped = bytearray(frame or b"\0")
        for _ in range(rng.randint(1, 3)):
            flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        changed.append(bytes(flipped))
    changed.append(frame + rng.randbytes(3))
    changed.append(rng.randbytes(rng.randrange(40)))
    return changed


@pytest.mark.parametrize(("message", "version"), CASES, ids=case_id)
def test_malformed_bytes_raise_wire_error_and_nothing_else(message: Any, version: int) -> None:
    @few(2)
    @given(messages(message, version), st.integers(0, 1 << 32))
    def check(value: Any, seed: int) -> None:
        for frame in mutations(value.encode(version), random.Random(seed)):
            decode_or_refuse(message, version, frame)

    check()


def frames() -> list[tuple[type[Message], int, bytes]]:
    """Frames of real size and shape, in both encodings."""
    produce = ProduceRequest(
        transactional_id="txn",
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"r" * 100)])
        ],
    )
    fetch = FetchRequest(
        topics=[FetchTopic(topic="t", partitions=[FetchPartition(), FetchPartition()])]
    )
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="txn",
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[1, 2, 3])],
    )
    return [
        *((ProduceRequest, version, produce.encode(version)) for version in (8, 11)),
        *((FetchRequest, version, fetch.encode(version)) for version in (4, 12)),
        *((AddPartitionsToTxnRequest, version, add.encode(version)) for version in (2, 3)),
        (MetadataRequest, 1, MetadataRequest().encode(1)),
        (RequestHeader, 2, RequestHeader(client_id="client").encode(2)),
    ]


@pytest.mark.parametrize(("message", "version", "frame"), frames(), ids=case_id)
def test_a_lying_length_anywhere_allocates_next_to_nothing(
    message: type[Message], version: int, frame: bytes
) -> None:
    decode_or_refuse(message, version, frame)  # compiled before memory is measured
    tracemalloc.start()
    try:
        for at in range(len(frame) + 1):
            for lie in LIES:
                decode_or_refuse(message, version, frame[:at] + lie + frame[at + len(lie) :])
                decode_or_refuse(message, version, frame[:at] + lie + frame[at:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_a_count_is_refused_by_what_its_elements_need_at_least() -> None:
    """2^20 topics of at least two bytes are announced, a megabyte is there: nothing is read."""
    frame = (1 << 20).to_bytes(4, "big") + bytes(1 << 20)
    with pytest.raises(WireError, match="topics at byte 4: more is announced than remains"):
        MetadataRequest.decode(frame, 1)


def test_elements_are_counted_over_the_whole_message() -> None:
    """Two bytes of a frame can become an object of a hundred, so their number is bounded too."""
    topics = 1 + (1 << 20)
    with pytest.raises(WireError, match="more than 1048576 elements"):
        MetadataRequest.decode(topics.to_bytes(4, "big") + bytes(2 * topics + 8), 1)
    partitions = 1 << 19
    topic = b"\0\0" + partitions.to_bytes(4, "big") + bytes(4 * partitions)
    frame = b"\0\0" + bytes(10) + b"\0\0\0\2" + topic * 2
    with pytest.raises(WireError, match="more than 1048576 elements"):
        AddPartitionsToTxnRequest.decode(frame, 2)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(
    ("name", "encoded_kb", "decoded_kb"),
    [("é" * 16_000, 31, 31), ("x" * 31_000 + "\U0001f600", 30, 120)],
    ids=["two bytes", "wide"],
)
def test_each_kilobyte_of_a_long_string_counts_as_an_element(
    version: int, name: str, encoded_kb: int, decoded_kb: int
) -> None:
    """The versions have lengths of two bytes, and compact ones."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)] * 2)
    frame = request.encode(version)
    decode, counted = MetadataRequest.decoder(version), 2 + 2 * decoded_kb
    assert decode(frame, 0, counted) == (request, len(frame), counted)
    with pytest.raises(TooManyElements):
        decode(frame, 0, counted - 1)
    encode, counted = MetadataRequest.encoder(version), 2 + 2 * encoded_kb
    assert b"".join(encode(request, counted)) == frame
    with pytest.raises(TooManyElements):
        encode(request, counted - 1)


def test_random_bytes_for_every_message() -> None:
    rng = random.Random(4_3_1)
    for message, version in CASES:
        for _ in range(20):
            decode_or_refuse(message, version, rng.randbytes(rng.randrange(64)))


@pytest.mark.parametrize("with_known", [False, True])
def test_a_struct_has_ten_thousand_tagged_fields_at_most(with_known: bool) -> None:
    message: type[Message] = ApiVersionsResponse if with_known else ApiVersionsRequest
    value = message()
    for count, is_read in ((TAGGED_FIELDS_MAX, True), (TAGGED_FIELDS_MAX + 1, False)):
        value.unknown_tags = tuple((tag, b"") for tag in range(1000, 1000 + count))
        data = value.encode(3)
        if is_read:
            assert len(message.decode(data, 3).unknown_tags) == count
        else:
            with pytest.raises(WireError, match="10001 tagged fields"):
                message.decode(data, 3)
