"""What group coordinators wrote into `__consumer_offsets`: whether a partition ever had two owners.

A record of a classic group is one stable generation: in it no partition may be assigned twice. A
group of the newer protocol (KIP-848) has a record for each member, with the partitions that the
member owns. A member owns a partition until it has given it up, even if it was told to do so
earlier. At no point of the log may two members own the same partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from wire.errors import WireError
from wire.internal.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from wire.internal.consumer_protocol import ConsumerProtocolAssignment
from wire.internal.group_metadata import GroupMetadataKey, GroupMetadataValue
from wire.internal.versioned import decode_versioned, peek_version

OFFSETS_TOPIC = "__consumer_offsets"
_READ_TIMEOUT_S = 60.0
_GROUP_KEY = 2
_MEMBER_KEY = 8
_CONSUMER = "consumer"

Owned = frozenset[tuple[str, int]]
Pair = tuple[bytes | None, bytes | None]


@dataclass
class History:
    """A fold of the records of one partition of `__consumer_offsets`, in the order of the log."""

    faults: list[str] = field(default_factory=list)
    generations: int = 0
    """Stable generations of classic groups with members."""
    reconciliations: int = 0
    """Times that a member of a newer group had its assignment changed."""
    _owners: dict[str, dict[str, Owned]] = field(default_factory=dict)
    _last_generation: dict[str, int] = field(default_factory=dict)

    def on_record(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        kind = peek_version(key)
        if kind == _GROUP_KEY:
            group = decode_versioned(GroupMetadataKey, key).group
            if value is not None:
                self._on_generation(offset, group, decode_versioned(GroupMetadataValue, value))
            else:
                self._last_generation.pop(group, None)
        elif kind == _MEMBER_KEY:
            place = decode_versioned(ConsumerGroupCurrentMemberAssignmentKey, key)
            self._on_member(offset, place.group_id, place.member_id, value)

    def _on_generation(self, offset: int, group: str, value: GroupMetadataValue) -> None:
        before = self._last_generation.get(group, -1)
        if value.generation < before:
            self.faults.append(
                f"{group} went back from generation {before} to {value.generation} at {offset}"
            )
        self._last_generation[group] = value.generation
        if value.protocol_type != _CONSUMER or not value.members:
            return
        self.generations += 1
        owners: dict[tuple[str, int], str] = {}
        for member in value.members:
            for place in _assigned(bytes(member.assignment)):
                other = owners.setdefault(place, member.member_id)
                if other != member.member_id:
                    self._twice(offset, group, place, other, member.member_id)

    def _on_member(self, offset: int, group: str, member_id: str, value: bytes | None) -> None:
        owners = self._owners.setdefault(group, {})
        if value is None:
            owners.pop(member_id, None)
            return
        current = decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, value)
        mine = frozenset(
            (str(topic.topic_id), index)
            for topic in (*current.assigned_partitions, *current.partitions_pending_revocation)
            for index in topic.partitions
        )
        self.reconciliations += owners.get(member_id) != mine
        owners[member_id] = mine
        for other, theirs in owners.items():
            for place in sorted(mine & theirs) if other != member_id else ():
                self._twice(offset, group, place, other, member_id)

    def _twice(self, offset: int, group: str, place: tuple[str, int], *owners: str) -> None:
        self.faults.append(
            f"{group}: {place[0]}-{place[1]} is owned by {' and '.join(owners)} at {offset}"
        )


def read_history(bootstrap: str, partitions: int) -> History:
    """Return the history of all groups whose members the broker has coordinated."""
    history = History()
    for partition in range(partitions):
        one = History()
        for offset, (key, value) in enumerate(_records(bootstrap, partition)):
            one.on_record(offset, key, value)
        history.faults += one.faults
        history.generations += one.generations
        history.reconciliations += one.reconciliations
    return history


def _assigned(assignment: bytes) -> Iterator[tuple[str, int]]:
    """Yield the partitions that a leader assigned; none if the assignment cannot be read."""
    if not assignment:
        return
    try:
        version = min(peek_version(assignment), ConsumerProtocolAssignment.max_version)
        found, _ = ConsumerProtocolAssignment.decode_from(assignment, version, 2)
    except WireError:
        return
    for each in found.assigned_partitions:
        for index in each.partitions:
            yield each.topic, index


def _records(bootstrap: str, partition: int) -> Iterable[Pair]:
    """Yield the keys and values of a partition of `__consumer_offsets`, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "history",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(OFFSETS_TOPIC, partition, 0)])
        deadline = time.monotonic() + _READ_TIMEOUT_S
        while time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.1):
                error = message.error()
                if error is None:
                    key, value = message.key(), message.value()
                    assert not isinstance(key, str)
                    assert not isinstance(value, str)
                    yield key, value
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
        raise TimeoutError(f"{OFFSETS_TOPIC}-{partition} does not end")
    finally:
        consumer.close()
