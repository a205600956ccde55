"""A member of a consumer group, by the classic protocol: join, heartbeat, commit, leave.

Assigns partitions by range if the coordinator makes this member the leader. Blocking, and for one
thread: the caller sends heartbeats between its fetches. Source: KIP-62, KIP-394 (member ids),
Kafka's RangeAssignor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.client.cluster import (
    RETRY_DELAY_S,
    TRANSIENT,
    WAITED_FOR,
    Client,
    TopicPartition,
    by_topic,
)
from magnetar.client.errors import Refused, check
from magnetar.client.group_offsets import commit_offsets
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.internal.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from wire.internal.consumer_protocol import TopicPartition as AssignedTopic
from wire.internal.versioned import decode_compatible, encode_versioned
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

_PROTOCOL_TYPE, _RANGE = "consumer", "range"
_SESSION_TIMEOUT_MS = 45_000
#: Kafka's default, heartbeat.interval.ms: a session has room for a dozen lost heartbeats.
_HEARTBEAT_S = 3.0
#: A coordinator answers JoinGroup and SyncGroup once all members have joined, which may take two
#: sessions: one to notice that a member is dead, one for the others to come back.
_REBALANCE_S = 2 * _SESSION_TIMEOUT_MS / 1000
#: The last version with one group, and the first with require_stable (KIP-447).
_FETCH_VERSION = 7
#: LeaveGroup in the versions that name members (KIP-345).
LEAVE_MEMBERS_SINCE = 3
#: The group has a new generation, or does not know the member any more: join again.
_REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_LOST = ErrorCode.UNKNOWN_MEMBER_ID


@dataclass
class GroupMember:
    """One member. Call `join` first, and again whenever `must_rejoin` returns True."""

    client: Client
    group_id: str
    topics: Sequence[str]
    generation_id: int = -1
    member_id: str = ""
    _coordinator: int | None = None
    _heartbeat_due: float = 0.0

    def join(self) -> list[TopicPartition]:
        """Return the partitions assigned to this member; may wait for the other members.

        Refused if the group's members speak another protocol, or the broker does not allow it.
        """
        while True:
            # Found anew in each attempt: NOT_COORDINATOR is one of the reasons for another one.
            self._coordinator = self.client.group_coordinator_of(self.group_id)
            joined = self._join()
            # KIP-394: the broker names the member first, so that a join whose response was lost
            # leaves no ghost that the group waits for.
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if self._waits_to_rejoin(joined.error_code):
                continue
            check(joined.error_code, f"joining group {self.group_id}")
            self.member_id, self.generation_id = joined.member_id, joined.generation_id
            is_leader = joined.leader == joined.member_id
            # Every member syncs, the leader with the plan: the coordinator answers all once it has
            # the plan.
            assignments = self._assign(joined.members) if is_leader else []
            synced = self._sync(assignments, joined.protocol_name)
            if self._waits_to_rejoin(synced.error_code):
                continue
            check(synced.error_code, f"joining group {self.group_id}")
            self._heartbeat_due = time.monotonic() + _HEARTBEAT_S
            return _assigned(synced.assignment)

    def must_rejoin(self) -> bool:
        """Send a heartbeat if one is due; return whether the group rebalances."""
        if time.monotonic() < self._heartbeat_due:
            return False
        self._heartbeat_due = time.monotonic() + _HEARTBEAT_S
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )
        code = self.client.call(request, HeartbeatResponse, node_id=self._coordinator).error_code
        # A rebalance is no error: the coordinator answers heartbeats like this until all have
        # joined.
        if code in _REJOIN:
            self._forget_if_lost(code)
            return True
        check(code, f"group {self.group_id}")
        return False

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets; partitions without one are left out."""
        request = OffsetFetchRequest(
            group_id=self.group_id,
            topics=[
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
            # Otherwise a new owner would begin before offsets that an open transaction is about to
            # commit, and process their records twice (KIP-447).
            require_stable=True,
        )
        found: dict[TopicPartition, int] = {}
        deadline = time.monotonic() + self.client.timeout_s
        while True:
            answer = self.client.call(
                request, OffsetFetchResponse, node_id=self._coordinator, at_most=_FETCH_VERSION
            )
            codes = {each.error_code for topic in answer.topics for each in topic.partitions}
            codes.add(answer.error_code)
            if WAITED_FOR.isdisjoint(codes) or time.monotonic() > deadline:
                break
            time.sleep(RETRY_DELAY_S)
            if not TRANSIENT.isdisjoint(codes):
                # The coordinator may have moved.
                self._coordinator = self.client.group_coordinator_of(self.group_id)
        check(answer.error_code, f"the offsets of group {self.group_id}")
        for topic in answer.topics:
            for each in topic.partitions:
                check(each.error_code, f"group {self.group_id}, {topic.name}")
                if each.committed_offset >= 0:
                    found[topic.name, each.partition_index] = each.committed_offset
        return found

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit offsets. After a rebalance it commits none: the new owner reads again from the
        last committed offset.
        """
        if not positions:
            return
        codes = commit_offsets(
            self.client,
            self._coordinator,
            self.group_id,
            positions,
            member_id=self.member_id,
            generation_id=self.generation_id,
        )
        for (topic, index), code in codes.items():
            if code in _REJOIN:
                self._forget_if_lost(code)
                # The next `must_rejoin` asks at once: until then it would read partitions of
                # another member.
                self._heartbeat_due = 0.0
            else:
                check(code, f"committing {topic}-{index}")

    def leave(self) -> None:
        """Leave, so that the other members need not wait for the end of the session."""
        if not self.member_id:
            return
        request = LeaveGroupRequest(group_id=self.group_id)
        if self.client.version_for(LeaveGroupRequest) >= LEAVE_MEMBERS_SINCE:
            request.members = [MemberIdentity(member_id=self.member_id)]
        else:
            request.member_id = self.member_id
        self.client.call(request, LeaveGroupResponse, node_id=self._coordinator)

    def _waits_to_rejoin(self, code: int) -> bool:
        if code not in _REJOIN:
            return False
        self._forget_if_lost(code)
        time.sleep(RETRY_DELAY_S)
        return True

    def _forget_if_lost(self, code: int) -> None:
        # With the old id the coordinator would refuse each join; without one it counts as a new
        # member. Other errors keep the id, and so the member's place in the group.
        if code == _LOST:
            self.member_id, self.generation_id = "", -1

    def _join(self) -> JoinGroupResponse:
        subscription = ConsumerProtocolSubscription(topics=sorted(self.topics))
        protocol = JoinGroupRequestProtocol(name=_RANGE, metadata=encode_versioned(subscription, 0))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=_SESSION_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[protocol],
        )
        return self.client.call(
            request,
            JoinGroupResponse,
            node_id=self._coordinator,
            extra_wait_s=_REBALANCE_S,
        )

    def _sync(
        self, assignments: list[SyncGroupRequestAssignment], protocol_name: str | None
    ) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=protocol_name,
            assignments=assignments,
        )
        return self.client.call(
            request,
            SyncGroupResponse,
            node_id=self._coordinator,
            extra_wait_s=_REBALANCE_S,
        )

    def _assign(
        self, members: Sequence[JoinGroupResponseMember]
    ) -> list[SyncGroupRequestAssignment]:
        wanted: dict[str, list[str]] = {}
        for member in members:
            try:
                subscription = decode_compatible(
                    ConsumerProtocolSubscription, bytes(member.metadata)
                )
            except WireError:
                continue  # The member gets nothing, because its topics cannot be read.
            for topic in subscription.topics:
                wanted.setdefault(topic, []).append(member.member_id)
        counts: dict[str, int] = dict.fromkeys(wanted, 0)
        for topic, index in self.client.topics():
            if topic in counts:
                counts[topic] = max(counts[topic], index + 1)
        assigned = assign_by_range(wanted, counts)
        return [
            SyncGroupRequestAssignment(
                member_id=member.member_id,
                # Every member gets an entry, also an empty one: version 0 is what every client
                # reads.
                assignment=encode_versioned(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            AssignedTopic(topic=topic, partitions=indexes)
                            for topic, indexes in by_topic(
                                assigned.get(member.member_id, [])
                            ).items()
                        ]
                    ),
                    0,
                ),
            )
            for member in members
        ]


def assign_by_range(
    wanted: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return each member's partitions: a range of every topic, one longer for the first members.

    `wanted` holds the members of each topic, `counts` its number of partitions.
    """
    assigned: dict[str, list[TopicPartition]] = {}
    for topic, member_ids in sorted(wanted.items()):
        # Members in the order of their ids, as Kafka's RangeAssignor: a leader of another client
        # makes the same plan.
        each, longer = divmod(counts[topic], len(member_ids))
        start = 0
        for number, member_id in enumerate(sorted(member_ids)):
            end = start + each + (number < longer)
            assigned.setdefault(member_id, []).extend((topic, at) for at in range(start, end))
            start = end
    return assigned


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions that a leader assigned to a member. Raises WireError."""
    # A coordinator answers an empty assignment to a member that the leader has left out.
    if not data:
        return []
    assignment = decode_compatible(ConsumerProtocolAssignment, bytes(data))
    return [
        (each.topic, index) for each in assignment.assigned_partitions for index in each.partitions
    ]


def _assigned(data: bytes) -> list[TopicPartition]:
    try:
        return decode_assignment(data)
    except WireError as error:
        raise Refused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the leader's plan: {error}"
        ) from None
