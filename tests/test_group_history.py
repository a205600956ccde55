"""The judge of group histories finds what it is there to find."""

from __future__ import annotations

from uuid import UUID

import pytest

from compat_tests.churn.history import History
from wire.internal.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from wire.internal.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from wire.internal.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from wire.internal.versioned import encode_versioned

TOPIC_ID = UUID(int=7)


def generation(number: int, **members: list[int]) -> tuple[bytes, bytes]:
    """Return the record of a generation, and which partitions of `orders` each member has."""
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=number,
        members=[
            MemberMetadata(
                member_id=member_id,
                assignment=encode_versioned(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[TopicPartition(topic="orders", partitions=owned)]
                    )
                ),
            )
            for member_id, owned in members.items()
        ],
    )
    return encode_versioned(GroupMetadataKey(group="g")), encode_versioned(value, 3)


def member(
    member_id: str, assigned: list[int] | None, pending: tuple[int, ...] = ()
) -> tuple[bytes, bytes | None]:
    """Return the record of a member of the newer protocol; None: it is gone."""
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member_id)
    if assigned is None:
        return encode_versioned(key), None
    value = ConsumerGroupCurrentMemberAssignmentValue(
        assigned_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=assigned)],
        partitions_pending_revocation=[
            TopicPartitions(topic_id=TOPIC_ID, partitions=list(pending))
        ],
    )
    return encode_versioned(key), encode_versioned(value)


def faults(*records: tuple[bytes, bytes | None]) -> list[str]:
    history = History()
    for offset, (key, value) in enumerate(records):
        history.on_record(offset, key, value)
    return history.faults


def test_a_history_without_faults() -> None:
    assert not faults(generation(1, a=[0, 1]), generation(2, a=[0], b=[1]), generation(3))
    assert not faults(
        member("a", [0, 1]), member("a", [0], (1,)), member("a", [0]), member("b", [1])
    )
    assert not faults(member("a", [0]), member("a", None), member("b", [0]))


@pytest.mark.parametrize(
    "records",
    [
        [generation(1, a=[0, 1], b=[1])],
        [generation(2, a=[0]), generation(1, a=[0])],
        [member("a", [0]), member("b", [0])],
        [member("a", [0], (1,)), member("b", [1])],
        [member("a", [0]), member("b", [1]), member("b", [1, 0])],
    ],
    ids=["in a generation", "backwards", "two members", "not given up yet", "later"],
)
def test_a_fault_is_found(records: list[tuple[bytes, bytes | None]]) -> None:
    (fault,) = faults(*records)
    assert fault.startswith("g")


def test_what_is_no_group_is_passed_over() -> None:
    assert not faults((b"\x00\x01rest", b"anything"), (b"\x00\x05rest", None))
