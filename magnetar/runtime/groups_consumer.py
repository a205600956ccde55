"""Consumer groups (KIP-848) at work: heartbeats answered, members given up, patterns resolved.

Owns no rule: they are in `coordinator.groups.consumer`. A heartbeat that changes something is
answered when that is durable; one that does not writes nothing, and waits only for what it rests
on. Regular expressions are matched in the thread of `magnetar.patterns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.groups.consumer.draft import Draft
from coordinator.groups.consumer.exchange import (
    ConsumerLimits,
    HeartbeatAnswer,
    HeartbeatDecision,
    HeartbeatRequest,
)
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.heartbeat import decide_heartbeat
from coordinator.groups.consumer.leaving import decide_leave, decide_removal
from coordinator.groups.consumer.member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    Member,
    MemberState,
)
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex
from coordinator.groups.consumer.subscribing import decide_regexes
from coordinator.groups.consumer.timers import Wait
from coordinator.groups.consumer.validation import check_heartbeat
from magnetar import patterns
from magnetar.config.group import group_integer
from magnetar.config_resources import ResourceType
from magnetar.logging import get_logger
from magnetar.runtime.topic_image import BrokerTopics
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.runtime.groups import Groups
    from magnetar.runtime.groups_shard import RunningShard

_log = get_logger("groups")

#: However quickly topics come and go, a group's patterns are matched again this often at most.
_REGEX_REFRESH_INTERVAL_MS = 1_000


class ConsumerGroups:
    """The coordinator of consumer groups; `Groups` owns the shards and the alarm."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups

    @property
    def topics(self) -> BrokerTopics:
        return BrokerTopics(self._broker.topics)

    def limits(self, group_id: str) -> ConsumerLimits:
        """Return what the group's own configs say, and the broker's where it has none."""
        config = self._broker.config
        own = self._broker.stored_configs.texts(ResourceType.GROUP, group_id)
        return ConsumerLimits(
            size_max=config.group_consumer_max_size,
            session_timeout_ms=group_integer("consumer.session.timeout.ms", own, config),
            heartbeat_interval_ms=group_integer("consumer.heartbeat.interval.ms", own, config),
            assignment_interval_ms=group_integer("consumer.assignment.interval.ms", own, config),
            assignors=tuple(config.group_consumer_assignors),
        )

    async def heartbeat(self, request: HeartbeatRequest, version: int) -> HeartbeatAnswer:
        """Return the answer of a heartbeat, once what it rests on is durable.

        Refuses with what `validation`, `heartbeat` and `leaving` of the coordinator do, and with
        GROUP_ID_NOT_FOUND, INVALID_REGULAR_EXPRESSION.
        """
        check_heartbeat(request, version, self._broker.config.group_consumer_assignors)
        shard = self._groups.shard_of(request.group_id)
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            group = shard.state.find_consumer_group(request.group_id)
            decision = decide_leave(group, request, self.topics)
            return await self._carry_out(shard, group.group_id, decision)
        request = await self._with_resolved_regex(shard, request)
        return await self._carry_out(shard, request.group_id, self._decide(shard, request))

    def _decide(self, shard: RunningShard, request: HeartbeatRequest) -> HeartbeatDecision:
        now_ms = self._broker.clock.now_ms()
        draft = self._draft(shard, request)
        limits = self.limits(request.group_id)
        return decide_heartbeat(draft, request, self.topics, limits, now_ms)

    def _draft(self, shard: RunningShard, request: HeartbeatRequest) -> Draft:
        """Return the group that a heartbeat is for. A first join makes it."""
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
        return Draft(ConsumerGroup(group_id), is_new=True)

    async def _carry_out(
        self, shard: RunningShard, group_id: str, decision: HeartbeatDecision
    ) -> HeartbeatAnswer:
        """Append, apply, set deadlines; answer when all that the answer rests on is durable."""
        now_ms = self._broker.clock.now_ms()
        answer = decision.answer
        known = shard.state.consumer_groups.get(group_id)
        before = None if known is None else known.members.get(answer.member_id)
        self._append(shard, group_id, decision.records, now_ms)
        group = shard.state.consumer_groups.get(group_id)
        if group is None:
            await shard.log.durable(shard.log.end_offset)
            return answer
        group.topics_seen = self._broker.topics.version
        member = group.members.get(answer.member_id)
        if member is not None and answer.member_epoch >= JOINING:
            self._wait_for(group, before, member, now_ms)
        self._watch(group, now_ms)
        self._refresh_regexes_later(shard, group, now_ms)
        await shard.log.durable(group.rests_on)
        return answer

    def _append(
        self,
        shard: RunningShard,
        group_id: str,
        records: Sequence[ConsumerGroupRecord],
        now_ms: int,
    ) -> None:
        if not records:
            return
        end_offset = shard.append(records, now_ms)
        group = shard.state.consumer_groups.get(group_id)
        if group is not None:
            group.rests_on = end_offset

    # --- deadlines

    def resume(self, shard: RunningShard, now_ms: int) -> None:
        """The shard is replayed: every member has a whole session, and time to give back."""
        for group in shard.state.consumer_groups.values():
            for member in group.members.values():
                self._wait_for(group, None, member, now_ms)
            self._watch(group, now_ms)

    def expire(self, shard: RunningShard, group: ConsumerGroup, now_ms: int) -> None:
        """Give up the members whose time has come."""
        expired = group.timers.expired(now_ms)
        for member_id, wait in expired:
            _log.info(
                "member removed", group_id=group.group_id, member_id=member_id, why=wait.value
            )
        if expired:
            member_ids = [each.member_id for each in expired]
            records = decide_removal(group, member_ids, self.topics)
            self._append(shard, group.group_id, records, now_ms)
        self._watch(group, now_ms)

    def _wait_for(
        self, group: ConsumerGroup, before: Member | None, member: Member, now_ms: int
    ) -> None:
        """Restart the member's session; give it its time where it has just been asked for more."""
        member_id = member.member_id
        limits = self.limits(group.group_id)
        group.timers.set(Wait.SESSION, member_id, now_ms + limits.session_timeout_ms)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
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
        group.regexes_next_ms = now_ms + _REGEX_REFRESH_INTERVAL_MS
        group.regexes_seen = version
        self._groups.spawn(self._refresh_regexes(shard, group.group_id))

    async def _refresh_regexes(self, shard: RunningShard, group_id: str) -> None:
        group = shard.state.consumer_groups.get(group_id)
        regexes = () if group is None else tuple(group.regexes)
        found = {regex: await self._resolve(regex) for regex in regexes}
        group = shard.state.consumer_groups.get(group_id)
        if group is not None:
            records = decide_regexes(group, found, self.topics)
            self._append(shard, group_id, records, self._broker.clock.now_ms())
