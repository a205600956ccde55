"""Share groups: members, and where each partition's delivery begins (KIP-932).

Asks Apache Kafka: magnetar has no share groups. The broker counts the lag itself, from version 1 of
DescribeShareGroupOffsets on (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import NotFound, check
from magnetar.client.groups import Group, Member, assigned_by_broker
from wire.error_code import ErrorCode
from wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from wire.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

SHARE = "share"


@dataclass(frozen=True)
class SharePosition:
    """A partition: records from `start_offset` on are still to be delivered or acknowledged."""

    topic: str
    partition: int
    start_offset: int
    lag: int
    """-1: the broker does not tell."""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition


def describe_share_groups(client: Client, group_ids: Sequence[str]) -> dict[str, Group]:
    """Return those of these groups that are share groups."""
    if not group_ids or not client.serves(ShareGroupDescribeRequest):
        return {}
    found = {}
    for node_id, ids in client.group_coordinators(group_ids).items():
        request = ShareGroupDescribeRequest(group_ids=ids)
        response = client.call(request, ShareGroupDescribeResponse, node_id=node_id)
        for group in response.groups:
            # Groups of other kinds, too, are not found.
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                continue
            check(group.error_code, f"share group {group.group_id!r}", group.error_message)
            members = [
                Member(
                    each.member_id,
                    None,
                    each.client_id,
                    each.client_host,
                    assigned_by_broker(each.assignment),
                )
                for each in group.members
            ]
            found[group.group_id] = Group(
                group.group_id,
                SHARE,
                SHARE,
                group.assignor_name,
                group.group_state,
                node_id,
                group.group_epoch,
                sorted(members, key=lambda member: member.member_id),
            )
    return found


def share_positions(client: Client, group_ids: Sequence[str]) -> dict[str, list[SharePosition]]:
    """Return the partitions of each share group. NotFound: one is none."""
    found = {}
    for node_id, ids in client.group_coordinators(group_ids).items():
        request = DescribeShareGroupOffsetsRequest(
            groups=[
                DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in ids
            ]
        )
        response = client.call(request, DescribeShareGroupOffsetsResponse, node_id=node_id)
        for group in response.groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise NotFound(f"there is no share group {group.group_id!r}.")
            check(group.error_code, f"share group {group.group_id!r}", group.error_message)
            found[group.group_id] = sorted(
                (
                    SharePosition(
                        topic.topic_name, each.partition_index, each.start_offset, each.lag
                    )
                    for topic in group.topics
                    for each in topic.partitions
                    if each.error_code == ErrorCode.NONE and each.start_offset >= 0
                ),
                key=lambda each: each.place,
            )
    return found
