"""Consumer groups (KIP-848) at work: heartbeats answered, members given up, patterns resolved.

Owns no rule: they are in `coordinator.groups.consumer`. A heartbeat that changes something is
answered when that is durable; one that does not writes nothing, and waits only for what it rests
on. Regular expressions are matched in the thread of `magnetar.runtime.patterns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.groups.classic.group import GroupState
from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.heartbeat import decide_heartbeat
from coordinator.groups.consumer.member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    Member,
    MemberState,
)
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
    refuse_parked,
)
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex
from coordinator.groups.consumer.requests import (
    ConsumerLimits,
    HeartbeatAnswer,
    HeartbeatRequest,
    check_heartbeat,
)
from coordinator.groups.consumer.soft_state import Wait
from coordinator.groups.consumer.subscription import decide_regexes, next_epoch
from coordinator.groups.records import GroupRecord
from magnetar.config.group import group_integer
from magnetar.logging import get_logger
from magnetar.runtime import patterns
from magnetar.runtime.topic_image import BrokerTopics
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.runtime.groups import Groups
    from magnetar.runtime.groups_shard import RunningShard

_log = get_logger("groups")

#: Where the configuration names none.
_ASSIGNORS = ("uniform",)
#: Values of group.consumer.migration.policy.
_UPGRADES = ("bidirectional", "upgrade")
_DOWNGRADES = ("bidirectional", "downgrade")

#: However quickly topics come and go, a group's patterns are matched again this often at most.
_REGEX_REFRESH_INTERVAL_MS = 1_000


class ConsumerGroups:
    """The coordinator of consumer groups; `Groups` owns the shards and the alarm."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups
        #: Groups whose patterns are being matched again.
        self._refreshing: set[str] = set()

    @property
    def topics(self) -> BrokerTopics:
        return BrokerTopics(self._broker.topics)

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may ask for, the default first; there is always one."""
        return tuple(self._broker.config.group_consumer_assignors) or _ASSIGNORS

    def limits(self, group_id: str) -> ConsumerLimits:
        """Return what the group's own configs say, and the broker's where it has none."""
        config = self._broker.config
        own = self._broker.stored_configs.texts(ResourceType.GROUP, group_id)
        return ConsumerLimits(
            size_max=config.group_consumer_max_size,
            session_timeout_ms=group_integer("consumer.session.timeout.ms", own, config),
            heartbeat_interval_ms=group_integer("consumer.heartbeat.interval.ms", own, config),
            assignment_interval_ms=group_integer("consumer.assignment.interval.ms", own, config),
            assignors=self.assignors,
        )

    async def heartbeat(self, request: HeartbeatRequest, version: int) -> HeartbeatAnswer:
        """Return the answer of a heartbeat, once what it rests on is durable.

        Refuses with what `validation`, `heartbeat` and `leaving` of the coordinator do, and with
        GROUP_ID_NOT_FOUND, INVALID_REGULAR_EXPRESSION.
        """
        check_heartbeat(request, version, self.assignors)
        shard = self._groups.shard_of(request.group_id)
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return await self._leave(shard, request)
        request = await self._with_resolved_regex(shard, request)
        known = shard.state.consumer_groups.get(request.group_id)
        is_first_regex = known is None or not known.regexes
        now_ms = self._broker.clock.steady_ms()
        draft = self._draft(shard, request, now_ms)
        limits = self.limits(request.group_id)
        decision = decide_heartbeat(draft, request, self.topics, limits, now_ms)
        member_id = decision.answer.member_id
        group = self.carry_out(shard, request.group_id, decision.records, member_id, limits, now_ms)
        if not decision.records:
            group.nothing_for[member_id] = group.revision
        if is_first_regex and request.resolved is not None:
            group.regexes_seen = request.resolved.version
        self._refresh_regexes_later(shard, group, now_ms)
        assigned = group.members[member_id].assigned
        answer = group.acknowledging.answered(request, decision.answer, assigned, now_ms)
        await shard.log.durable(group.rests_on)
        return answer

    async def _leave(self, shard: RunningShard, request: HeartbeatRequest) -> HeartbeatAnswer:
        now_ms = self._broker.clock.steady_ms()
        group = shard.state.find_consumer_group(request.group_id)
        member = leaving_member(group, request)
        if request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is not None:
            self._append(shard, group.group_id, decide_absence(group, member), now_ms)
            # It has given back what it was asked for; its session alone says how long it may stay.
            group.timers.clear(Wait.REVOCATION, member.member_id)
        else:
            self.remove(shard, group, [member.member_id], now_ms)
        await shard.log.durable(shard.log.end_offset)
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    def _draft(self, shard: RunningShard, request: HeartbeatRequest, now_ms: int) -> Draft:
        """Return the group that a heartbeat is for. A first join makes it, of a classic one too."""
        group_id = request.group_id
        group = shard.state.consumer_groups.get(group_id)
        if group is not None:
            return Draft(group)
        if request.member_epoch != JOINING:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group."
                if shard.state.exists(group_id)
                else f"Consumer group {group_id} not found.",
            )
        self._groups.refuse_beyond_limit(shard, group_id)
        classic = shard.state.groups.get(group_id)
        if classic is None or classic.state is GroupState.EMPTY:
            return Draft(ConsumerGroup(group_id), is_new=True)
        config = self._broker.config
        return decide_upgrade(
            classic,
            self.topics,
            allowed=config.group_consumer_migration_policy in _UPGRADES,
            size_max=config.group_consumer_max_size,
            now_ms=now_ms,
        )

    # --- one step

    def carry_out(
        self,
        shard: RunningShard,
        group_id: str,
        records: Sequence[ConsumerGroupRecord],
        member_id: str,
        limits: ConsumerLimits,
        now_ms: int,
    ) -> ConsumerGroup:
        """Make a member's decision so: records, what it is waited for. Returns its group.

        A classic group of that id is deleted in the same step; whoever waits in it is sent back.
        """
        known = shard.state.consumer_groups.get(group_id)
        before = None if known is None else known.members.get(member_id)
        try:
            self._append(shard, group_id, records, now_ms)
        finally:
            # Also where a record was too large, and only those before it were written.
            group = shard.state.consumer_groups.get(group_id)
            if group is not None:
                members = list(group.members.values())
                if known is not None:
                    members = [group.members[member_id]] if member_id in group.members else []
                for member in members:
                    self._wait_for(group, before, member, limits, now_ms)
                self._watch(group, now_ms)
        group = shard.state.consumer_groups[group_id]
        group.topics_seen = self._broker.topics.version
        return group

    def notice_topics(self, shard: RunningShard, group: ConsumerGroup, now_ms: int) -> None:
        """Raise the group's epoch where topics that it reads have changed; O(1) where none has."""
        version = self._broker.topics.version
        if group.topics_seen != version:
            records = next_epoch(group, self.topics, changed=False)
            self._append(shard, group.group_id, records, now_ms)
            group.topics_seen = version

    def remove(
        self, shard: RunningShard, group: ConsumerGroup, member_ids: Sequence[str], now_ms: int
    ) -> None:
        """Have the members gone; the group is a classic one then, if only such are left."""
        if self.downgrade_if_due(shard, group, member_ids, now_ms):
            return
        records = decide_removal(group, member_ids, self.topics)
        self._append(shard, group.group_id, records, now_ms)
        self._watch(group, now_ms)

    def downgrade_if_due(
        self, shard: RunningShard, group: ConsumerGroup, leaving: Sequence[str], now_ms: int
    ) -> bool:
        """Turn the group into a classic one where only classic members are left; True: it is."""
        config = self._broker.config
        allowed = config.group_consumer_migration_policy in _DOWNGRADES
        size_max = config.group_max_size
        if not is_downgrade_due(group, leaving, allowed=allowed, size_max=size_max):
            return False
        classic, value = downgraded(group, leaving, self.topics, shard.state.limits, now_ms)
        shard.append_in_parts(deletion(group), now_ms)
        shard.state.groups[group.group_id] = classic
        self._groups.persist(shard, GroupRecord(group.group_id, value), now_ms)
        _log.info("group downgraded", group_id=group.group_id, members=len(classic.members))
        self._groups.rebalance(shard, classic, now_ms)
        return True

    def _append(
        self,
        shard: RunningShard,
        group_id: str,
        records: Sequence[ConsumerGroupRecord],
        now_ms: int,
    ) -> None:
        if not records:
            return
        classic = shard.state.groups.get(group_id)
        tombstone = [] if classic is None else [GroupRecord(group_id, None)]
        try:
            shard.append_in_parts([*tombstone, *records], now_ms)
        finally:
            group = shard.state.consumer_groups.get(group_id)
            if group is not None:
                group.rests_on = shard.log.end_offset
            if classic is not None and classic.state is GroupState.DEAD:
                self._groups.give(refuse_parked(classic), shard.log.end_offset)
                _log.info("group upgraded", group_id=group_id, members=len(classic.members))

    # --- deadlines

    def resume(self, shard: RunningShard, now_ms: int) -> None:
        """The shard is replayed: every member has a whole session, and time to give back."""
        for group in shard.state.consumer_groups.values():
            limits = self.limits(group.group_id)
            for member in group.members.values():
                self._wait_for(group, None, member, limits, now_ms)
            self._watch(group, now_ms)

    def expire(self, shard: RunningShard, group: ConsumerGroup, now_ms: int) -> None:
        """Give up the members whose time has come."""
        expired = group.timers.expired(now_ms)
        for member_id, wait in expired:
            group_id, why = group.group_id, wait.value
            _log.info("member removed", group_id=group_id, member_id=member_id, why=why)
        if expired:
            self.remove(shard, group, [each.member_id for each in expired], now_ms)
        else:
            self._watch(group, now_ms)

    def _wait_for(
        self,
        group: ConsumerGroup,
        before: Member | None,
        member: Member,
        limits: ConsumerLimits,
        now_ms: int,
    ) -> None:
        """Restart the member's session; give it its time where it has just been asked for more."""
        member_id = member.member_id
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
            group.timers.set(Wait.SESSION, member_id, now_ms + session_ms)
            group.timers.clear(Wait.REVOCATION, member_id)
            return
        # It may have spoken the classic protocol before.
        group.timers.clear(Wait.JOIN, member_id)
        group.timers.clear(Wait.SYNC, member_id)
        group.timers.set(Wait.SESSION, member_id, now_ms + limits.session_timeout_ms)
        # One that is away keeps its state, but has nothing left to give back.
        if member.state is not MemberState.UNREVOKED_PARTITIONS or not member.revoking:
            group.timers.clear(Wait.REVOCATION, member_id)
        elif before is None or before.revoking != member.revoking:
            deadline_ms = now_ms + member.rebalance_timeout_ms
            group.timers.set(Wait.REVOCATION, member_id, deadline_ms)

    def _watch(self, group: ConsumerGroup, now_ms: int) -> None:
        self._groups.watch_until(group.group_id, group.timers.wake_ms, now_ms)

    # --- regular expressions

    async def _with_resolved_regex(
        self, shard: RunningShard, request: HeartbeatRequest
    ) -> HeartbeatRequest:
        """Return the request with what its pattern matches, where the group does not know it."""
        regex = request.topic_regex
        group = shard.state.consumer_groups.get(request.group_id)
        if not regex or (group is not None and regex in group.regexes):
            return request
        return replace(request, resolved=await self._resolve(regex))

    async def _resolve(self, regex: str) -> ResolvedRegex:
        topics = self.topics
        version = topics.version
        matching = await patterns.matching(regex, topics.names())
        return ResolvedRegex(matching, version, self._broker.clock.now_ms())

    def _refresh_regexes_later(
        self, shard: RunningShard, group: ConsumerGroup, now_ms: int
    ) -> None:
        """Match a group's patterns again where topics have changed; one at a time per group."""
        version = self._broker.topics.version
        if not group.regexes or group.regexes_seen == version or now_ms < group.regexes_next_ms:
            return
        if group.group_id in self._refreshing:
            return  # slow, or behind slow ones: what has changed since is seen to after it
        self._refreshing.add(group.group_id)
        group.regexes_next_ms = now_ms + _REGEX_REFRESH_INTERVAL_MS
        group.regexes_seen = version
        self._groups.spawn(self._refresh_regexes(shard, group.group_id))

    async def _refresh_regexes(self, shard: RunningShard, group_id: str) -> None:
        group = shard.state.consumer_groups.get(group_id)
        regexes = () if group is None else tuple(group.regexes)
        try:
            found = {regex: await self._resolve(regex) for regex in regexes}
            group = shard.state.consumer_groups.get(group_id)
            if group is not None:
                records = decide_regexes(group, found, self.topics)
                self._append(shard, group_id, records, self._broker.clock.now_ms())
        except KafkaError as refusal:
            # A pattern that another broker took, or too many topics for one record.
            _log.warning("patterns not resolved", group_id=group_id, reason=str(refusal))
        finally:
            self._refreshing.discard(group_id)
