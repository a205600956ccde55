"""Groups, their members and what they read, of the classic protocol and of KIP-848."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import NotFound, check, code_of
from magnetar.client.group_lags import committed_by_group, known_leaders
from magnetar.client.group_member import LEAVE_MEMBERS_SINCE, decode_assignment
from magnetar.client.partitions import LATEST, list_offsets
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.messages import share_group_describe
from wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

#: ListGroups in the versions that can filter by state and by type.
_STATES_SINCE, _TYPES_SINCE = 4, 5
_CLASSIC = "classic"
_CONSUMER = "consumer"
_DEAD = "Dead"


@dataclass(frozen=True)
class ListedGroup:
    """A group as its coordinator lists it; `kind` is classic, consumer, share or streams."""

    group_id: str
    kind: str
    protocol: str
    state: str
    coordinator: int

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group_id,
            "type": self.kind,
            "protocol": self.protocol,
            "state": self.state,
            "coordinator": self.coordinator,
        }


@dataclass(frozen=True)
class Member:
    """A member of a group. `partitions` None: its assignment is in a format of its clients' own."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: Sequence[TopicPartition] | None

    def to_json(self) -> dict[str, Any]:
        return {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "partitions": None if self.partitions is None else _places(self.partitions),
        }


@dataclass(frozen=True)
class Group:
    """A group and its members. `epoch` is -1 for a classic group: its generation is not told."""

    group_id: str
    kind: str
    protocol: str
    assignor: str
    state: str
    coordinator: int
    epoch: int = -1
    members: Sequence[Member] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group_id,
            "type": self.kind,
            "protocol": self.protocol,
            "assignor": self.assignor,
            "state": self.state,
            "coordinator": self.coordinator,
            "epoch": None if self.epoch < 0 else self.epoch,
            "members": [member.to_json() for member in self.members],
        }


@dataclass(frozen=True)
class Position:
    """How far a group has read in a partition. `committed` or `end` -1: there is none."""

    topic: str
    partition: int
    committed: int
    end: int
    reader: Member | None

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def lag(self) -> int:
        """Records that the group has yet to read, markers counted; -1 if that is not known."""
        if self.committed < 0 or self.end < 0:
            return -1
        return max(self.end - self.committed, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "committed": _or_none(self.committed),
            "end": _or_none(self.end),
            "lag": _or_none(self.lag),
            "member_id": None if self.reader is None else self.reader.member_id,
        }


class NoSuchGroup(NotFound):
    """A group that is not there, or is neither a classic group nor a consumer group."""


def list_groups(
    client: Client, *, states: Sequence[str] = (), kinds: Sequence[str] = ()
) -> list[ListedGroup]:
    """Return the groups in one of these states and of one of these types (empty: any), by id."""
    request = ListGroupsRequest()
    at_least = 0
    if states:
        request.states_filter, at_least = list(states), _STATES_SINCE
    if kinds:
        request.types_filter, at_least = list(kinds), _TYPES_SINCE
    found = []
    # A broker lists the groups that it coordinates, so all have to be asked.
    for node_id in client.node_ids:
        ask = partial(client.call, request, ListGroupsResponse, node_id=node_id, at_least=at_least)
        response = client.retry_transient(ask, attrgetter("error_code"))
        check(response.error_code, f"listing the groups of broker {node_id}")
        found += [
            ListedGroup(
                each.group_id, each.group_type, each.protocol_type, each.group_state, node_id
            )
            for each in response.groups
        ]
    return sorted(found, key=lambda group: group.group_id)


def describe_groups(client: Client, group_ids: Iterable[str]) -> list[Group]:
    """Return these groups, in this order. NoSuchGroup for one that does not exist."""
    wanted = list(dict.fromkeys(group_ids))
    found = known_groups(client, wanted)
    for group_id in wanted:
        if group_id not in found:
            raise NoSuchGroup(_absence(client, group_id))
    return [found[group_id] for group_id in wanted]


def _absence(client: Client, group_id: str) -> str:
    """Return why a group cannot be described: it may be of another type."""
    kind = next((each.kind for each in list_groups(client) if each.group_id == group_id), "")
    if kind in ("", _CLASSIC, _CONSUMER):
        return f"there is no group {group_id!r}."
    return (
        f"{group_id!r} is a {kind} group: `magnetar groups list` and `magnetar console` show it."
        " Offsets are committed by classic and consumer groups alone."
    )


def known_groups(client: Client, wanted: Sequence[str]) -> dict[str, Group]:
    """Return those of these groups that exist, and are classic groups or consumer groups."""
    found: dict[str, Group] = {}
    for node_id, ids in client.group_coordinators(wanted).items():
        # The newer protocol first: DescribeGroups does not know its groups.
        if client.serves(ConsumerGroupDescribeRequest):
            found |= _consumer_groups(client, node_id, ids)
        classic = [group_id for group_id in ids if group_id not in found]
        if classic:
            found |= _classic_groups(client, node_id, classic)
    return found


def positions(client: Client, group: Group) -> list[Position]:
    """Return how far the group has read in the partitions that it committed or is assigned."""
    return positions_of(client, [group])[0]


def positions_of(client: Client, groups: Sequence[Group]) -> list[list[Position]]:
    """Return the positions of each group, in few requests."""
    committed = committed_by_group(client, [each.group_id for each in groups])
    # Assigned partitions without a committed offset are shown too: their lag is the first thing one
    # looks for.
    readers = [
        {partition: member for member in group.members for partition in member.partitions or ()}
        for group in groups
    ]
    wanted = {place for offsets in committed.values() for place in offsets}
    ends = _ends(client, wanted.union(*readers))
    return [
        _positions(committed.get(group.group_id, {}), of_group, ends)
        for group, of_group in zip(groups, readers, strict=True)
    ]


def _positions(
    committed: Mapping[TopicPartition, int],
    readers: Mapping[TopicPartition, Member],
    ends: Mapping[TopicPartition, int],
) -> list[Position]:
    return [
        Position(*place, committed.get(place, -1), ends.get(place, -1), readers.get(place))
        for place in sorted({*committed, *readers})
    ]


def delete_groups(client: Client, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
    """Delete groups and their committed offsets; return the error code of each."""
    codes = {}
    for node_id, ids in client.group_coordinators(group_ids).items():
        request = DeleteGroupsRequest(groups_names=ids)
        response = client.call(request, DeleteGroupsResponse, node_id=node_id)
        for result in response.results:
            codes[result.group_id] = code_of(result.error_code)
    return codes


def remove_member(client: Client, group_id: str, member: Member, reason: str) -> None:
    """Take a member out of a group of the classic protocol, which then shares its partitions out.

    A member whose client is alive joins again. Refused: it is gone, or the group is of another
    protocol. Source: KIP-345, KIP-800 (the reason).
    """
    identity = MemberIdentity(
        member_id=member.member_id, group_instance_id=member.instance_id, reason=reason
    )
    response = client.call(
        LeaveGroupRequest(group_id=group_id, members=[identity]),
        LeaveGroupResponse,
        node_id=client.group_coordinator_of(group_id),
        at_least=LEAVE_MEMBERS_SINCE,
    )
    check(response.error_code, f"group {group_id!r}")
    for each in response.members:
        check(each.error_code, f"member {each.member_id}")


def _ends(client: Client, wanted: Set[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end of each partition; those of deleted topics are left out."""
    leaders = known_leaders(client, {topic for topic, _ in wanted})
    return list_offsets(client, leaders, wanted & leaders.keys(), LATEST)


def _consumer_groups(client: Client, node_id: int, ids: list[str]) -> dict[str, Group]:
    """Return those of these groups that speak the newer protocol (KIP-848)."""
    request = ConsumerGroupDescribeRequest(group_ids=ids)
    response = client.call(request, ConsumerGroupDescribeResponse, node_id=node_id)
    found = {}
    for group in response.groups:
        # UNSUPPORTED_VERSION: a coordinator that has the newer protocol turned off.
        if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        check(group.error_code, f"group {group.group_id!r}")
        found[group.group_id] = _consumer_group(group, node_id)
    return found


def _consumer_group(group: DescribedConsumerGroup, node_id: int) -> Group:
    members = [
        Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            assigned_by_broker(each.assignment),
        )
        for each in group.members
    ]
    return Group(
        group.group_id,
        _CONSUMER,
        _CONSUMER,
        group.assignor_name,
        group.group_state,
        node_id,
        group.group_epoch,
        sorted(members, key=lambda member: member.member_id),
    )


def assigned_by_broker(
    assignment: Assignment | share_group_describe.Assignment,
) -> list[TopicPartition]:
    """Return the partitions that the broker has given to a member, in order."""
    return sorted(
        (topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def _classic_groups(client: Client, node_id: int, ids: list[str]) -> dict[str, Group]:
    request = DescribeGroupsRequest(groups=ids)
    response = client.call(request, DescribeGroupsResponse, node_id=node_id)
    found = {}
    for group in response.groups:
        # Older versions have no error for an unknown group: they describe it as Dead.
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD:
            continue
        check(group.error_code, f"group {group.group_id!r}")
        found[group.group_id] = Group(
            group.group_id,
            _CLASSIC,
            group.protocol_type,
            group.protocol_data,
            group.group_state,
            node_id,
            members=sorted(_classic_members(group), key=lambda member: member.member_id),
        )
    return found


def _classic_members(group: DescribedGroup) -> Iterator[Member]:
    reads_topics = group.protocol_type == _CONSUMER
    for each in group.members:
        yield Member(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            # Connect and other users of the protocol assign things of their own: the bytes are
            # theirs.
            _assigned(each.member_assignment) if reads_topics else None,
        )


def _assigned(assignment: bytes) -> list[TopicPartition] | None:
    try:
        return sorted(decode_assignment(assignment))
    # Any client may write what it likes there; one that no one else can read is no failure of the
    # query.
    except WireError:
        return None


def _places(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": index} for topic, index in partitions]


def _or_none(value: int) -> int | None:
    return None if value < 0 else value
