"""Records of `__consumer_offsets`: as Apache Kafka 4.3.1 wrote them, and back."""

from __future__ import annotations

import sys
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState
from coordinator.groups.classic.records import apply, current_value
from coordinator.groups.offsets.committed import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetKey,
    OffsetRecord,
    decode_offset,
    encode_offset,
    metadata_code,
)
from coordinator.groups.records import GroupRecord, decode, encode
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.internal.group_metadata import GroupMetadataValue, MemberMetadata
from wire.internal.offset_commit import OffsetCommitValue
from wire.internal.versioned import decode_versioned, encode_versioned

#: Taken from the log of a broker after a commit by kafka-python: offset 5, epoch 3, "meta".
OFFSET_KEY = bytes.fromhex("0001 00026731 000174 00000000")
OFFSET_VALUE = bytes.fromhex(
    "0004 0000000000000005 00000003 056d657461 000001a1fe0ac139"
    "01 00 10 f1304bd957064ab9beed1449f669bc92"
)
#: The same group after its only member had left.
GROUP_KEY = bytes.fromhex("0002 00026731")
GROUP_VALUE = bytes.fromhex(
    "0003 0008636f6e73756d6572 00000002 ffff ffff 000001a1fe0ac159 00000000"
)


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    committed = CommittedOffset(
        5, 3, b"meta", 0x1A1FE0AC139, topic_id=UUID("f1304bd9-5706-4ab9-beed-1449f669bc92")
    )
    record = OffsetRecord(OffsetKey("g1", "t", 0), committed)
    assert encode(record) == (OFFSET_KEY, OFFSET_VALUE)
    assert decode(OFFSET_KEY, OFFSET_VALUE) == record
    assert decode(OFFSET_KEY, None) == OffsetRecord(record.key, None)


def test_an_empty_group_is_written_as_kafka_writes_it() -> None:
    record = decode(GROUP_KEY, GROUP_VALUE)
    assert isinstance(record, GroupRecord) and record.value is not None
    group = ClassicGroup("g1", GroupLimits())
    apply(group, record.value)
    assert (group.state, group.generation_id) == (GroupState.EMPTY, 2)
    assert encode(GroupRecord("g1", current_value(group))) == (GROUP_KEY, GROUP_VALUE)


def test_a_retention_time_of_its_own_needs_an_older_version() -> None:
    record = OffsetRecord(OffsetKey("g", "t", 0), CommittedOffset(5, -1, b"m", 10, 20))
    key, value = encode(record)
    assert value is not None and value[:2] == b"\0\1"
    assert decode(key, value) == record


def test_an_offset_key_of_the_first_version_is_an_offset_too() -> None:
    record = decode(b"\0\0" + OFFSET_KEY[2:], OFFSET_VALUE)
    assert isinstance(record, OffsetRecord)
    assert record.key == OffsetKey("g1", "t", 0)


def test_records_of_other_protocols_are_passed_over() -> None:
    assert decode(b"\0\x0b" + OFFSET_KEY[2:], b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0", None), (OFFSET_KEY, b"\0\4\1"), (OFFSET_KEY, b"")]
)
def test_damaged_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(WireError):
        decode(key, value)


_INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        CommittedOffset,
        _INT64,
        st.integers(-(2**31), 2**31 - 1),
        st.text(max_size=20000).map(str.encode),
        _INT64,
        st.just(-1),
        st.uuids() | st.just(NO_TOPIC_ID),
    )
)
def test_an_offset_has_the_bytes_of_its_message(committed: CommittedOffset) -> None:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata.decode(),
        commit_timestamp=committed.committed_ms,
        topic_id=committed.topic_id,
    )
    assert encode_offset(committed) == encode_versioned(value, 4)


@pytest.mark.parametrize(
    "members",
    [
        [MemberMetadata(member_id="m"), MemberMetadata(member_id="m")],
        [
            MemberMetadata(member_id="m", group_instance_id="i"),
            MemberMetadata(member_id="n", group_instance_id="i"),
        ],
    ],
)
def test_a_group_that_has_a_member_twice_is_damage(members: list[MemberMetadata]) -> None:
    value = encode_versioned(GroupMetadataValue(protocol_type="consumer", members=members), 3)
    with pytest.raises(WireError, match="names a member twice"):
        decode(GROUP_KEY, value)


@given(
    st.integers(0, 4),
    st.integers(-1, 2**63 - 1),
    st.text(max_size=150),
    st.sampled_from([NO_TOPIC_ID, UUID(int=7), UUID(int=2**127 + 3)]),
    st.data(),
)
def test_an_offset_is_read_as_the_decoder_of_all_versions_reads_it(
    version: int, offset: int, metadata: str, topic_id: UUID, data: st.DataObject
) -> None:
    written = OffsetCommitValue(
        offset=offset, leader_epoch=3, metadata=metadata, commit_timestamp=5, topic_id=topic_id
    )
    value = bytearray(encode_versioned(written, version))
    # Whole, or with a byte changed, cut off, or too many.
    change = data.draw(st.sampled_from(["none", "byte", "end", "more"]))
    if change == "byte":
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    elif change == "end":
        del value[data.draw(st.integers(0, len(value) - 1)) :]
    elif change == "more":
        value += data.draw(st.binary(min_size=1, max_size=40))
    try:
        read = decode_versioned(OffsetCommitValue, value)
    except WireError:
        with pytest.raises(WireError):
            decode_offset(value)
    else:
        found = decode_offset(value)
        text = read.metadata.encode()
        assert found[:4] == (read.offset, read.leader_epoch, text, read.commit_timestamp)
        assert found[4:] == (read.expire_timestamp, read.topic_id)


def test_metadata_takes_the_bytes_that_the_client_has_sent() -> None:
    """As a text, 4,096 characters took 16 KB for one rare character among them."""
    metadata = ("\U0001f600" + "m" * 4000).encode()
    for committed_ms, expires_ms in ((10, -1), (10, 20)):
        committed = CommittedOffset(5, -1, metadata, committed_ms, expires_ms)
        read = decode_offset(encode_offset(committed))
        assert read == committed
        assert sys.getsizeof(read.metadata) < len(metadata) + 50


@pytest.mark.parametrize("character", ["m", "\u00e9", "\u20ac", "\U0001f600"])
def test_metadata_is_measured_in_javas_characters(character: str) -> None:
    units_max = 10 * len(character.encode("utf-16-le")) // 2
    assert metadata_code((character * 10).encode(), units_max) == ErrorCode.NONE
    too_large = metadata_code((character * 10 + "m").encode(), units_max)
    assert too_large == ErrorCode.OFFSET_METADATA_TOO_LARGE
