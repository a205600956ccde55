"""What declarations promise those who use them: defaults, validation, tags, headers, prefixes."""

from __future__ import annotations

import copy
import tracemalloc
from uuid import UUID

import pytest

from wire.errors import WireError
from wire.internal.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from wire.internal.consumer_protocol import ConsumerProtocolSubscription
from wire.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from wire.internal.transaction_log import TransactionLogKey, TransactionLogValue
from wire.internal.versioned import (
    decode_compatible,
    decode_versioned,
    encode_versioned,
    peek_version,
)
from wire.message import ZERO_UUID, Buffer, Message, Struct, in_versions, int8, int32
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from wire.messages.header import RequestHeader, ResponseHeader
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class Part(Struct):
    name: str = ""
    weight: int8 = in_versions("1+", default=7)


class Whole(Message, api_key=1000, versions="0-3", flexible="2+"):
    parts: list[Part] = []
    note: str | None = in_versions("0+", nullable="1+")
    hint: int32 = in_versions("1+", ignorable=True)
    since: int32 = in_versions("1+", default=-1)
    extra: str | None = in_versions("2+", tag=3, default=None)
    part: Part = in_versions("3+", tag=1)


def test_a_constructor_fills_in_the_defaults() -> None:
    whole = Whole()
    assert (whole.parts, whole.note, whole.since, whole.extra) == ([], "", -1, None)
    assert whole.part == Part(name="", weight=7)
    assert PartitionData().records is None
    assert FetchRequest().max_bytes == 0x7FFFFFFF
    assert TopicProduceData().topic_id is ZERO_UUID


def test_defaults_are_not_shared() -> None:
    Whole().parts.append(Part())
    Whole().part.name = "changed"
    assert Whole().parts == []
    assert Whole().part.name == ""


def test_a_constructor_refuses_unknown_fields() -> None:
    with pytest.raises(TypeError, match="colour"):
        Part(colour=1)  # type: ignore[call-arg]  # what a wrong call does at run time


def test_equality_is_by_value_and_type() -> None:
    assert Part(name="a") == Part(name="a")
    assert Part(name="a") != Part(name="b")
    assert Part() != Whole()
    assert Part(unknown_tags=((9, b""),)) != Part()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Part())


def test_copies_are_equal() -> None:
    whole = Whole(parts=[Part(name="a")])
    assert copy.copy(whole) == copy.deepcopy(whole) == whole


def test_repr_shows_fields_and_only_the_size_of_records() -> None:
    assert repr(Part(name="a")) == "Part(name='a', weight=7)"
    assert "<3 bytes>" in repr(PartitionProduceData(records=memoryview(b"abc")))


@pytest.mark.parametrize(
    ("message", "version", "complaint"),
    [
        (Whole(since=5), 0, "since is not in this version, but set to 5"),
        (Whole(parts=[Part(weight=1)]), 0, r"parts\[0\].weight is not in this version"),
        (Whole(extra="x"), 1, "extra is not in this version"),
        (Whole(part=Part(name="x")), 2, "part is not in this version"),
        (Whole(note=None), 0, "note is None, which this version cannot say"),
        (Whole(hint=1 << 31), 1, "hint is 2147483648, not an int32"),
        (Whole(parts=[Part(weight=-129)]), 1, r"parts\[0\].weight is -129, not an int8"),
        (Whole(note="x" * 0x8000), 1, "note has 32768 bytes, more than 32767"),
        (Whole(note="x" * 0x8000), 2, "note has 32768 bytes, more than 32767"),
        (Whole(note="\ud800"), 2, "not text in UTF-8"),
        (Whole(unknown_tags=((3, b""),), extra="x"), 2, "tag 3 is given twice"),
        (Whole(), 4, "has versions 0-3, not 4"),
        (Whole(), -1, "has versions 0-3, not -1"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_field(
    message: Message, version: int, complaint: str
) -> None:
    with pytest.raises(WireError, match=complaint):
        message.encode(version)


def test_values_of_another_type_are_refused() -> None:
    wrong = Whole()
    wrong.parts = [Whole()]  # type: ignore[list-item]  # what a wrong program does at run time
    with pytest.raises(WireError, match=r"parts\[0\] is a Whole, not a Part"):
        wrong.encode(1)
    wrong.parts = None  # type: ignore[assignment]  # as above
    with pytest.raises(WireError, match="parts is None"):
        wrong.encode(1)


def test_an_ignorable_field_is_dropped_where_it_does_not_exist() -> None:
    assert Whole.decode(Whole(hint=5).encode(0), 0).hint == 0
    assert Whole.decode(Whole(hint=5).encode(1), 1).hint == 5


def test_tagged_fields_are_sent_by_ascending_tag_and_only_where_they_differ() -> None:
    assert Whole().encode(3) == bytes.fromhex("01 01 00000000 ffffffff 00")
    tagged = Whole(extra="x", part=Part(name="p"), unknown_tags=((2, b"?"),))
    encoded = tagged.encode(3)
    # Three tags: 1 = Part("p", 7) with no tags of its own, 2 unknown, 3 = "x".
    assert encoded[10:] == bytes.fromhex("03 01 04 0270 07 00 02 01 3f 03 02 0278")
    assert Whole.decode(encoded, 3) == tagged


def test_a_tagged_field_must_fill_its_size() -> None:
    head = bytes.fromhex("01 01 00000000 ffffffff")
    assert Whole.decode(head + bytes.fromhex("01 03 02 0278"), 3).extra == "x"
    for lie in ("01 03 03 027800", "01 03 01 0278", "01 03 80"):
        with pytest.raises(WireError):
            Whole.decode(head + bytes.fromhex(lie), 3)


def test_a_nullable_tagged_struct_is_sent_as_kafka_sends_it() -> None:
    """Null is not the default, an empty struct, so it is sent. Bytes as Kafka 4.3.1 wrote them."""
    start = "010101010101ffffffff01"
    empty = ConsumerGroupMemberMetadataValue()
    assert empty.encode(0).hex() == start + "00"
    null = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    assert null.encode(0).hex() == start + "01000100"
    given = ConsumerGroupMemberMetadataValue(
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=7)
    )
    assert given.encode(0).hex() == start + "01000701000000070100"
    for value in (empty, null, given):
        assert ConsumerGroupMemberMetadataValue.decode(value.encode(0), 0) == value
    with pytest.raises(WireError, match="classic_member_metadata"):
        ConsumerGroupMemberMetadataValue.decode(bytes.fromhex(start + "01000102"), 0)


def test_null_is_refused_where_it_may_not_be() -> None:
    with pytest.raises(WireError, match="note"):
        Whole.decode(bytes.fromhex("00000000 ffff"), 0)
    with pytest.raises(WireError, match="parts"):
        Whole.decode(bytes.fromhex("ffffffff 0000"), 0)
    with pytest.raises(WireError, match="note"):
        Whole.decode(bytes.fromhex("00000000 fffe 00000000 00000000"), 1)


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(WireError, match="ends at byte 6, 1 bytes follow"):
        Whole.decode(bytes(7), 0)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(WireError, match="utf-8"):
        Whole.decode(bytes.fromhex("00000000 0001 ff"), 0)


def test_records_are_a_view_of_the_frame() -> None:
    request = ProduceRequest(
        topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=b"abc")])]
    )
    frame = bytearray(request.encode(11))
    records = ProduceRequest.decode(frame, 11).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"abc")] = ord("x")
    assert records.tobytes() == b"xbc"


def test_large_records_are_sent_without_being_copied() -> None:
    batches: list[Buffer] = [bytearray(2000), memoryview(bytes(3000))]
    response = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(records=batches)])]
    )
    parts = response.encoder(12)(response)
    assert parts[1] is batches[0]
    assert parts[2] is batches[1]
    assert b"".join(parts) == response.encode(12)
    decoded = FetchResponse.decode(response.encode(12), 12)
    assert decoded.responses[0].partitions[0].records == bytes(5000)


def test_a_tagged_struct_of_defaults_is_not_sent() -> None:
    plain = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData()])])
    led = copy.deepcopy(plain)
    led.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    assert len(led.encode(12)) == len(plain.encode(12)) + 2 + 9


def test_fields_that_changed_their_form_are_read_by_version() -> None:
    assert MetadataRequest.decode(MetadataRequest(topics=None).encode(1), 1).topics is None
    topic = MetadataRequestTopic(topic_id=UUID(int=9), name=None)
    assert MetadataRequest.decode(MetadataRequest(topics=[topic]).encode(12), 12).topics == [topic]
    assert OffsetFetchRequest().groups == []


def test_header_versions() -> None:
    assert [ProduceRequest.header_version(v) for v in (8, 9)] == [1, 2]
    assert [FetchResponse.header_version(v) for v in (11, 12)] == [0, 1]
    assert [ApiVersionsRequest.header_version(v) for v in (2, 3)] == [1, 2]
    assert [ApiVersionsResponse.header_version(v) for v in (0, 3, 4)] == [0, 0, 0]
    assert RequestHeader.max_version == 2
    assert ResponseHeader(correlation_id=7).encode(1) == b"\0\0\0\7\0"


def test_the_client_id_of_a_header_is_never_compact() -> None:
    header = RequestHeader(request_api_key=18, correlation_id=1, client_id="me")
    assert header.encode(2) == bytes.fromhex("0012 0000 00000001 0002 6d65 00")
    assert RequestHeader.decode_from(header.encode(2) + b"rest", 2) == (header, 13)


def test_an_unstable_version_is_not_declared() -> None:
    assert InitProducerIdRequest.max_version == 5


def test_keys_and_values_begin_with_their_kind_or_version() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_versioned(key)[:2] == b"\0\1"
    assert peek_version(encode_versioned(key)) == OffsetCommitKey.record_type == 1
    assert decode_versioned(OffsetCommitKey, encode_versioned(key)) == key
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="m", commit_timestamp=9)
    assert encode_versioned(value, 3)[:2] == b"\0\3"
    assert decode_versioned(OffsetCommitValue, encode_versioned(value, 3)) == value
    with pytest.raises(WireError, match="record type 0, not 1"):
        decode_versioned(TransactionLogKey, encode_versioned(key))
    with pytest.raises(WireError, match="not 9"):
        decode_versioned(TransactionLogValue, b"\0\x09")
    with pytest.raises(WireError, match="1 bytes follow"):
        decode_versioned(OffsetCommitKey, encode_versioned(key) + b"?")
    with pytest.raises(WireError, match="hold no version"):
        peek_version(b"\0")


def test_a_newer_subscription_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
    newer = b"\0\7" + subscription.encode(3) + b"a field of version 7"
    assert decode_compatible(ConsumerProtocolSubscription, newer) == subscription
    with pytest.raises(WireError, match="not -1"):
        decode_compatible(ConsumerProtocolSubscription, b"\xff\xff")


def test_an_answer_of_many_strings_is_encoded_in_little_more_than_its_bytes() -> None:
    """Each string was a piece until the end: 137 MB for the configs of 2,000 topics, of 11 MB."""
    results = [
        DescribeConfigsResult(
            resource_name=f"topic-{number}",
            configs=[DescribeConfigsResourceResult(name="retention.ms", value="1000")] * 50,
        )
        for number in range(1000)
    ]
    response = DescribeConfigsResponse(results=results)
    encode = response.encoder(4)
    tracemalloc.start()
    try:
        parts = encode(response)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    data = b"".join(parts)
    assert peak_bytes < 2 * len(data)
    assert DescribeConfigsResponse.decode(data, 4) == response
