"""A consumer group to drive with values: `World` is the runtime around the rules, without waits.

Every record is encoded, kept, decoded and applied, as through a log; after each the owners of all
partitions are reckoned anew from the members and compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.classic.requests import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from coordinator.groups.consumer.classic_members import answer_sync, decide_join
from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.heartbeat import decide_heartbeat
from coordinator.groups.consumer.member import LEAVING_FOR_A_WHILE, Member, as_target
from coordinator.groups.consumer.membership import (
    decide_absence,
    decide_removal,
    leaving_member,
)
from coordinator.groups.consumer.migration import (
    decide_upgrade,
    deletion,
    downgraded,
    is_downgrade_due,
)
from coordinator.groups.consumer.records import ResolvedRegex
from coordinator.groups.consumer.requests import (
    ConsumerLimits,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.consumer.subscription import TopicInfo, decide_regexes, next_epoch
from coordinator.groups.records import GroupRecord, ShardRecord, decode, encode
from coordinator.groups.shard import GroupShard
from wire.error_code import ErrorCode
from wire.internal.consumer_protocol import (
    ConsumerProtocolSubscription,
    SubscriptionTopicPartition,
)
from wire.internal.versioned import encode_versioned

GROUP = "group"
_NOT_IN_THE_LOG = {"revision"}
#: (topic name, partition)
Place = tuple[str, int]


class FakeTopics:
    """Topics by name and id; ids are numbers in the order of creation."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self._by_name: dict[str, TopicInfo] = {}
        self._made = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int) -> None:
        self._made += 1
        self._set(TopicInfo(UUID(int=self._made), name, count))

    def grow(self, name: str, count: int) -> None:
        self._set(self._by_name[name]._replace(partition_count=count))

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1

    def by_name(self, name: str) -> TopicInfo | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((each for each in self._by_name.values() if each.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def resolve(self, regex: str) -> ResolvedRegex:
        found = frozenset(name for name in self._by_name if re.fullmatch(regex, name))
        return ResolvedRegex(found, self.version, 0)

    def _set(self, topic: TopicInfo) -> None:
        self._by_name[topic.name] = topic
        self.version += 1


class World:
    """One group, its shard's log, and the topics."""

    def __init__(
        self, topics: FakeTopics | None = None, *, may_downgrade: bool = True, **limits: Any
    ) -> None:
        self.topics = topics or FakeTopics(orders=4, audit=2)
        policy = "bidirectional" if may_downgrade else "upgrade"
        self.limits = ConsumerLimits(migration_policy=policy, classic_size_max=100, **limits)
        self.shard = GroupShard(GroupLimits())
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1_000
        #: what the last request wrote
        self.written: list[ShardRecord] = []

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumer_groups[GROUP]

    @property
    def soft(self) -> SoftState:
        return self.shard.soft_state(GROUP)

    # --- requests

    def join(self, member_id: str, *names: str, **fields: Any) -> HeartbeatAnswer:
        """Join with a full request: all topics named, or `topic_regex`."""
        said = {"topic_names": frozenset(names), "owned": {}, "rebalance_timeout_ms": 60_000}
        return self.heartbeat(member_id, 0, **{**said, **fields})

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        regex = fields.get("topic_regex")
        if regex:
            fields.setdefault("resolved", self.topics.resolve(regex))
        if fields.get("owned") is not None:
            fields["owned"] = as_target(fields["owned"])
        request = HeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields
        )
        draft = self._draft()
        decision = decide_heartbeat(
            draft, self.soft, request, self.topics, self.limits, self.now_ms
        )
        self._append_for_group(decision.records)
        self.soft.topics_seen = self.topics.version
        return self.soft.on_heartbeat(self.group, request, decision, self.now_ms)

    def leave(self, member_id: str, epoch: int = -1, instance_id: str | None = None) -> None:
        request = HeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, instance_id=instance_id
        )
        member = leaving_member(self.shard.find_consumer_group(GROUP), request)
        if epoch == LEAVING_FOR_A_WHILE:
            self.append(decide_absence(self.group, member))
        else:
            self.remove([member.member_id])

    def remove(self, member_ids: Sequence[str]) -> None:
        """Give members up; the group may become a classic one."""
        if not self._downgraded_without(member_ids):
            self.append(decide_removal(self.group, member_ids, self.topics))

    def _downgraded_without(self, member_ids: Sequence[str]) -> bool:
        group = self.group
        if not is_downgrade_due(group, member_ids, self.limits):
            return False
        classic, value = downgraded(group, member_ids, self.topics, self.shard.limits, self.now_ms)
        self.shard.groups[GROUP] = classic
        self.append([*deletion(group), GroupRecord(GROUP, value)])
        return True

    def notice_topics(self) -> None:
        """What a classic member's heartbeat does besides."""
        if self.soft.topics_seen != self.topics.version:
            self.append(next_epoch(self.group, self.topics, changed=False))
            self.soft.topics_seen = self.topics.version

    def join_classic(
        self, member_id: str, *names: str, owned: Iterable[Place] = (), **fields: Any
    ) -> JoinAnswer:
        said: dict[str, Any] = {
            "member_id": member_id,
            "new_member_id": f"new-{len(self.log)}",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", subscription(names, owned)),),
        }
        request = JoinRequest(**{**said, **fields})
        draft = Draft(self.group)
        decision = decide_join(draft, self.soft, request, self.topics, self.limits, self.now_ms)
        self.append(decision.records)
        self.soft.topics_seen = self.topics.version
        if decision.answer.error_code is ErrorCode.NONE:
            self._downgraded_without(())
        return decision.answer

    def sync(self, member_id: str, generation_id: int, **fields: Any) -> SyncAnswer:
        request = SyncRequest(member_id=member_id, generation_id=generation_id, **fields)
        return answer_sync(self.group, request, self.topics)

    def refresh_regexes(self) -> None:
        found = {regex: self.topics.resolve(regex) for regex in self.group.regex_members}
        self.append(decide_regexes(self.group, found, self.topics))

    # --- the log

    def append(self, records: Iterable[ShardRecord]) -> None:
        self.written = list(records)
        for record in self.written:
            key, value = encode(record)
            self.log.append((key, value))
            decoded = decode(key, value)
            assert decoded is not None
            self.shard.apply(decoded, len(self.log))
            if GROUP in self.shard.consumer_groups:
                check_owners(self.group)

    def replayed(self, *, compacted: float = 0.0) -> GroupShard:
        """Return the shard as the log has it, without this part of the records that are replaced:
        by a later one of the same key."""
        last = {key: position for position, (key, _) in enumerate(self.log)}
        random = Random(len(self.log))
        shard = GroupShard(self.shard.limits)
        for position, (key, value) in enumerate(self.log):
            if last[key] != position and random.random() < compacted:
                continue
            record = decode(key, value)
            assert record is not None
            shard.apply(record, position)
        return shard

    def check_replay(self) -> None:
        # A replay leaves out batches of which every record is replaced; compaction all of these.
        for compacted in (0.0, 0.5, 1.0):
            assert snapshot(self.replayed(compacted=compacted)) == snapshot(self.shard)

    def _draft(self) -> Draft:
        group = self.shard.consumer_groups.get(GROUP)
        if group is not None:
            return Draft(group)
        classic = self.shard.groups.get(GROUP)
        if classic is None:
            return Draft(ConsumerGroup(GROUP), is_new=True)
        return decide_upgrade(classic, self.topics, self.limits)

    def _append_for_group(self, records: Iterable[ShardRecord]) -> None:
        if GROUP in self.shard.groups:
            records = [GroupRecord(GROUP, None), *records]
        self.append(records)

    # --- what tests look at

    def member(self, member_id: str) -> Member:
        return self.group.members[member_id]

    def assigned(self, member_id: str) -> set[Place]:
        return self.places(self.member(member_id).assigned)

    def places(self, assigned: Mapping[UUID, Iterable[int]]) -> set[Place]:
        """Return partitions by topic name; of deleted topics by their id."""
        return {
            (self._name(topic), p) for topic, partitions in assigned.items() for p in partitions
        }

    def owned(self, *places: Place) -> dict[UUID, frozenset[int]]:
        """Return what a heartbeat says of these partitions."""
        found: dict[UUID, frozenset[int]] = {}
        for name, partition in places:
            topic = self.topics.by_name(name)
            assert topic is not None
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | {partition}
        return found

    def _name(self, topic_id: UUID) -> str:
        topic = self.topics.by_id(topic_id)
        return str(topic_id) if topic is None else topic.name


def subscription(names: Iterable[str], owned: Iterable[Place] = ()) -> bytes:
    """Return what a classic member says in its join."""
    topics: dict[str, list[int]] = {}
    for name, partition in owned:
        topics.setdefault(name, []).append(partition)
    return encode_versioned(
        ConsumerProtocolSubscription(
            topics=sorted(names),
            owned_partitions=[
                SubscriptionTopicPartition(topic=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
    )


def check_owners(group: ConsumerGroup) -> None:
    """Each partition has one owner, and `owners` says who."""
    found: dict[UUID, dict[int, str]] = {}
    for member in group.members.values():
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    owners = found.setdefault(topic_id, {})
                    assert partition not in owners, (
                        f"{topic_id}-{partition}: {owners[partition]} and {member.member_id}"
                    )
                    owners[partition] = member.member_id
    assert found == group.owners


def snapshot(shard: GroupShard) -> dict[str, object]:
    """Return all that the log is to bring back."""
    found: dict[str, object] = {}
    for group_id, group in shard.consumer_groups.items():
        found[group_id] = {
            name: value for name, value in vars(group).items() if name not in _NOT_IN_THE_LOG
        }
    for group_id, classic in shard.groups.items():
        assert group_id not in found, "of one kind alone"
        found[group_id] = (classic.generation_id, sorted(classic.members))
    return found
