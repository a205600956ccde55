"""Members of classic groups as bytes over a socket: every version, every wrong word, no retries.

A `Member` is one connection and what it knows of itself. Joins and syncs that the coordinator parks
are sent with `send_join` and `send_sync` and heard with `heard`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Self
from uuid import UUID

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from compat_tests.client import TIMEOUT_S
from compat_tests.raw import Connection


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """Return what a consumer says when it joins: ConsumerProtocolSubscription, version 0.

    Kafka reads it, and never answers a consumer's join that it cannot read.
    """
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return (
        struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", len(user_data)) + user_data
    )


def assignment(topic: str, *partitions: int) -> bytes:
    """Return what a leader tells a consumer: ConsumerProtocolAssignment, version 0."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    indexes = struct.pack(f">{len(partitions)}i", *partitions)
    return struct.pack(">hi", 0, 1) + name + struct.pack(">i", len(partitions)) + indexes + _NULL


_NULL = struct.pack(">i", -1)
Protocols = tuple[tuple[str, bytes], ...]
RANGE: Protocols = (("range", subscription("orders")),)
STICKY: Protocols = (("sticky", subscription("orders")),)
OTHER_TOPIC: Protocols = (("range", subscription("returns")),)
_OF_MEMBERS_SINCE = 3
_BY_ID_SINCE = 10
_GROUPS_SINCE = 8
_NOT_YET = {14, 15, 16}


class Code(IntEnum):
    """The codes that group coordinators answer with, by Kafka's names."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class Member(Connection):
    """A would-be member of `group`. What it was told last is in `member_id`, `generation_id`."""

    def __init__(self, bootstrap: str, group: str, instance: str | None = None) -> None:
        super().__init__(bootstrap)
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation_id = -1
        self._find_coordinator(group or "any", key_type=0)
        self._await_coordinator()

    def reconnect(self, bootstrap: str) -> None:
        """Go on over a new connection: the same member, of a broker that was started again."""
        self.close()
        super().__init__(bootstrap)
        self._find_coordinator(self.group, key_type=0)
        self._await_coordinator()

    def __enter__(self) -> Self:
        return self

    def coordinator(self) -> str:
        """Return its group's coordinator as Kafka's tools show nodes."""
        found = self._find_coordinator(self.group, key_type=0)
        return f"{found.host}:{found.port} ({found.node_id})"

    def _await_coordinator(self) -> None:
        """Kafka names a coordinator before it has loaded its partition."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.describe(5).error_code in _NOT_YET:
            assert time.monotonic() < deadline, f"no coordinator for {self.group}"
            time.sleep(0.02)

    # --- membership

    def send_join(
        self,
        version: int = 9,
        *,
        member_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session_timeout_ms: int = 60_000,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        request = JoinGroupRequest[version](
            group_id=self.group,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocols=list(protocols),
            reason="because" if version >= 8 else None,
        )
        self._sent = (JoinGroupResponse, version)
        self.send(request)

    def send_sync(
        self,
        version: int = 5,
        *,
        assignments: Mapping[str, bytes] | None = None,
        member_id: str | None = None,
        generation_id: int | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> None:
        request = SyncGroupRequest[version](
            group_id=self.group,
            generation_id=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=list((assignments or {}).items()),
        )
        self._sent = (SyncGroupResponse, version)
        self.send(request)

    def heard(self) -> Any:
        """Return the answer to what was sent last; a join's is remembered."""
        response, version = self._sent
        answer = response.decode(self.receive_frame(), version=version, header=True)
        if response is JoinGroupResponse and answer.error_code in (
            Code.NONE,
            Code.MEMBER_ID_REQUIRED,
        ):
            self.member_id = answer.member_id
            self.generation_id = answer.generation_id
        return answer

    def join(self, version: int = 9, **fields: Any) -> Any:
        self.send_join(version, **fields)
        return self.heard()

    def sync(self, version: int = 5, **fields: Any) -> Any:
        self.send_sync(version, **fields)
        return self.heard()

    def enter(self, **fields: Any) -> Any:
        """Join, with the id that was given if one was; return the last answer."""
        answer = self.join(**fields)
        return self.join(**fields) if answer.error_code == Code.MEMBER_ID_REQUIRED else answer

    def lead(self, *, topics: Sequence[str] = (), **fields: Any) -> Any:
        """Join and assign everyone its own id, as the only member or as the leader."""
        if topics:
            fields["protocols"] = (("range", subscription(*topics)),)
        answer = self.enter(**fields)
        assert answer.error_code == Code.NONE, Code(answer.error_code)
        assigned = {each.member_id: each.member_id.encode() for each in answer.members}
        synced = self.sync(protocol_name=answer.protocol_name, assignments=assigned)
        assert synced.error_code == Code.NONE, Code(synced.error_code)
        return answer

    def heartbeat(
        self,
        version: int = 4,
        *,
        member_id: str | None = None,
        generation_id: int | None = None,
    ) -> Code:
        request = HeartbeatRequest[version](
            group_id=self.group,
            generation_id=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=self.instance,
        )
        return Code(self.call(request, HeartbeatResponse).error_code)

    def leave(self, *members: tuple[str, str | None], version: int = 5) -> list[Code]:
        """Let (member id, instance id) leave, by default this one; return a code for each."""
        leaving = members or ((self.member_id, self.instance),)
        if version < _OF_MEMBERS_SINCE:
            ((member_id, _),) = leaving
            request = LeaveGroupRequest[version](group_id=self.group, member_id=member_id)
            return [Code(self.call(request, LeaveGroupResponse).error_code)]
        request = LeaveGroupRequest[version](
            group_id=self.group,
            members=[(*each, "a reason") if version >= 5 else each for each in leaving],
        )
        answer = self.call(request, LeaveGroupResponse)
        if answer.error_code:
            return [Code(answer.error_code)]
        return [Code(each.error_code) for each in answer.members]

    # --- offsets

    def commit(
        self,
        topic: str | UUID,
        offset: int,
        version: int = 9,
        *,
        partition: int = 0,
        leader_epoch: int = -1,
        metadata: str | None = "",
        retention_time_ms: int = -1,
    ) -> Code:
        """Commit for (topic, partition), by id from version 10 on."""
        place = (partition, offset, leader_epoch, metadata)
        request = OffsetCommitRequest[version](
            group_id=self.group,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance,
            retention_time_ms=retention_time_ms,
            topics=[(topic, [place if version >= 6 else (partition, offset, metadata)])],
        )
        answer = self.call(request, OffsetCommitResponse)
        return Code(answer.topics[0].partitions[0].error_code)

    def committed(
        self,
        topics: Sequence[tuple[str | UUID, Sequence[int]]] | None,
        version: int = 9,
        *,
        require_stable: bool = False,
    ) -> dict[tuple[str | UUID, int], tuple[int, int, str | None, Code]]:
        """Return (offset, leader epoch, metadata, code) by (topic, partition)."""
        asked = None if topics is None else [(topic, list(each)) for topic, each in topics]
        if version < _GROUPS_SINCE:
            request = OffsetFetchRequest[version](
                group_id=self.group, topics=asked, require_stable=require_stable
            )
            found = self.call(request, OffsetFetchResponse)
        else:
            group: dict[str, Any] = {"group_id": self.group, "topics": asked}
            if version >= 9:
                group |= {"member_id": None, "member_epoch": -1}
            request = OffsetFetchRequest[version](
                groups=[tuple(group[name] for name in _group_fields(version))],
                require_stable=require_stable,
            )
            (found,) = self.call(request, OffsetFetchResponse).groups
        assert not found.error_code, Code(found.error_code)
        return {
            (topic.topic_id if version >= _BY_ID_SINCE else topic.name, each.partition_index): (
                each.committed_offset,
                each.committed_leader_epoch if version >= 5 else -1,
                each.metadata,
                Code(each.error_code),
            )
            for topic in found.topics
            for each in topic.partitions
        }

    def committed_of(
        self, groups: Sequence[tuple[str, Sequence[tuple[str, Sequence[int]]] | None]]
    ) -> dict[str, dict[tuple[str, int], int]]:
        """Return the offsets of many groups, from one OffsetFetch; topics None: all of them."""
        request = OffsetFetchRequest[8](groups=list(groups), require_stable=False)
        return {
            group.group_id: {
                (topic.name, each.partition_index): each.committed_offset
                for topic in group.topics
                for each in topic.partitions
            }
            for group in self.call(request, OffsetFetchResponse).groups
        }

    def delete_offset(self, topic: str, partition: int = 0) -> Code:
        request = OffsetDeleteRequest[0](group_id=self.group, topics=[(topic, [(partition,)])])
        answer = self.call(request, OffsetDeleteResponse)
        if answer.error_code:
            return Code(answer.error_code)
        return Code(answer.topics[0].partitions[0].error_code)

    # --- questions

    def describe(self, version: int = 6) -> Any:
        request = DescribeGroupsRequest[version](
            groups=[self.group], include_authorized_operations=False
        )
        (described,) = self.call(request, DescribeGroupsResponse).groups
        return described

    def state(self) -> str:
        return str(self.describe().group_state)

    def await_state(self, state: str) -> None:
        """Return when the group is in this state."""
        deadline = time.monotonic() + TIMEOUT_S
        while (found := self.state()) != state:
            assert time.monotonic() < deadline, f"{self.group} is {found}, not {state}"
            time.sleep(0.02)

    def listed(
        self, version: int = 5, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[tuple[str, ...]]:
        """Return what ListGroups says of this group: (protocol type, state, type)."""
        request = ListGroupsRequest[version](states_filter=list(states), types_filter=list(types))
        return [
            (each.protocol_type, each.group_state, each.group_type)
            for each in self.call(request, ListGroupsResponse).groups
            if each.group_id == self.group
        ]

    def delete_group(self) -> Code:
        answer = self.call(DeleteGroupsRequest[2](groups_names=[self.group]), DeleteGroupsResponse)
        return Code(answer.results[0].error_code)

    def topic_id(self, topic: str) -> UUID:
        request = MetadataRequest[12](
            topics=[(None, topic)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        found: UUID = self.call(request, MetadataResponse).topics[0].topic_id
        return found


def pair(
    enter: Callable[..., Member], *instances: str | None, **fields: Any
) -> tuple[Member, Member]:
    """Return the leader and the follower of a stable group of two."""
    first, second = (enter(instance) for instance in instances or (None, None))
    first.lead(**fields)
    second.member_id = second.join(**fields).member_id if second.instance is None else ""
    second.send_join(**fields)
    first.await_state("PreparingRebalance")
    first.send_join(**fields)
    joined = first.heard()
    second.heard()
    assert joined.leader == first.member_id
    assert len(joined.members) == 2
    first.sync(assignments={first.member_id: b"F", second.member_id: b"S"})
    assert second.sync().assignment == b"S"
    return first, second


def _group_fields(version: int) -> tuple[str, ...]:
    return (
        ("group_id", "member_id", "member_epoch", "topics")
        if version >= 9
        else ("group_id", "topics")
    )
