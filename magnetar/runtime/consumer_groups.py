"""Consumer groups (KIP-848): heartbeats are answered, members expired, patterns resolved.

The rules are in `coordinator.groups.consumer`. A heartbeat that changes something is answered when
the change is durable. A heartbeat that changes nothing writes nothing, and waits only for the
records that its answer rests on. Regular expressions are matched in the thread of
`magnetar.runtime.patterns`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from coordinator.groups.classic.group import GroupState
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.heartbeat import decide_heartbeat
from coordinator.groups.consumer.member import JOINING, LEAVING, LEAVING_FOR_A_WHILE
from coordinator.groups.consumer.membership import (
    decide_absence,
    decide_removal,
    leaving_member,
    speaking_member,
)
from coordinator.groups.consumer.migration import (
    deletion,
    downgraded,
    is_downgrade_due,
    refuse_all_parked,
)
from coordinator.groups.consumer.records import ConsumerGroupRecord, ResolvedRegex
from coordinator.groups.consumer.requests import (
    ConsumerLimits,
    HeartbeatAnswer,
    HeartbeatRequest,
    check_heartbeat,
)
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.consumer.subscription import decide_regexes, next_epoch
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.group import group_integer
from magnetar.logging import get_logger
from magnetar.runtime import patterns
from magnetar.runtime.background import Tasks
from magnetar.runtime.classic_groups import ClassicGroups
from magnetar.runtime.group_shards import GroupShards, RunningGroupShard, Step
from magnetar.runtime.group_timers import GroupTimers
from magnetar.runtime.topic_image import BrokerTopics
from magnetar.runtime.turns import Turns
from magnetar.storage.stored_configs import StoredConfigs
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType

_log = get_logger("groups")

#: The default where group.consumer.assignors is empty.
_ASSIGNORS = ("uniform",)
#: How many members of one group are removed in one step: after a restart, the sessions of all
#: members that have gone end at the same moment.
_EXPIRED_AT_ONCE = 200


class GroupSettings:
    """What the configuration says of one consumer group: its own configs, else the broker's."""

    def __init__(self, config: BrokerConfig, stored_configs: StoredConfigs) -> None:
        self._config = config
        self._stored_configs = stored_configs

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may ask for, the default first; there is always one."""
        return tuple(self._config.group_consumer_assignors) or _ASSIGNORS

    def of(self, group_id: str) -> ConsumerLimits:
        """Return what holds for the group at this moment."""
        config = self._config
        own = self._stored_configs.texts(ResourceType.GROUP, group_id)
        return ConsumerLimits(
            size_max=config.group_consumer_max_size,
            session_timeout_ms=group_integer("consumer.session.timeout.ms", own, config),
            heartbeat_interval_ms=group_integer("consumer.heartbeat.interval.ms", own, config),
            assignment_interval_ms=group_integer("consumer.assignment.interval.ms", own, config),
            assignors=self.assignors,
            migration_policy=config.group_consumer_migration_policy,
            classic_size_max=config.group_max_size,
        )


class ConsumerGroups:
    """The requests and the deadlines of consumer groups."""

    def __init__(
        self,
        shards: GroupShards,
        timers: GroupTimers,
        classic: ClassicGroups,
        topics: BrokerTopics,
        settings: GroupSettings,
        clock: Clock,
        tasks: Tasks,
        turns: Turns,
    ) -> None:
        self._shards = shards
        self._timers = timers
        self._classic = classic
        self._topics = topics
        self.settings = settings
        self._clock = clock
        self._tasks = tasks
        self._turns = turns

    # --- requests

    async def heartbeat(
        self, request: HeartbeatRequest, version: int, may_describe: Callable[[str], bool]
    ) -> HeartbeatAnswer:
        """Return the answer of a heartbeat, once what it rests on is durable.

        `may_describe`: whether the client may know of a topic. A pattern matches only such topics,
        until a heartbeat of another client matches the group's patterns again, as in Kafka.
        Refuses as the coordinator's rules, and with INVALID_REGULAR_EXPRESSION. Refuses with
        GROUP_MAX_SIZE_REACHED also if the members of all groups take too much memory.
        """
        check_heartbeat(request, version, self.settings.assignors)
        if request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return await self._leave(request)
        # Thousands of members may join, or take their next step in a rebalance, at once.
        if self._turns.is_over():
            await self._turns.give_up()
        if request.topic_regex:
            # The last await before the decision: from here on the group cannot change under it.
            request = await self._with_resolved_regex(request, request.topic_regex, may_describe)
        answer, shard, rests_on = self._beat(request, may_describe)
        # Not until the log's end: a heartbeat that writes nothing need not wait for other groups.
        await shard.durable(rests_on)
        return answer

    def _beat(
        self, request: HeartbeatRequest, may_describe: Callable[[str], bool]
    ) -> tuple[HeartbeatAnswer, RunningGroupShard, int]:
        """Return the answer of a heartbeat, and the shard and the offset that it rests on.

        The draft, a copy of the group, ends here: all members may wait for one sync at once.
        """
        step = self._shards.step(request.group_id)
        now_ms = step.now_ms
        limits = self.settings.of(step.group_id)
        if request.member_epoch == JOINING:
            # Only a join makes a group: a heartbeat of an existing member never meets the limit.
            self._shards.check_count(step.group_id, step.state)
        draft = step.state.draft(request, self._topics, limits)
        decision = decide_heartbeat(draft, step.soft, request, self._topics, limits, now_ms)
        # Nearly every heartbeat has none, and so needs no more memory than before.
        if decision.records:
            code = ErrorCode.GROUP_MAX_SIZE_REACHED
            self._shards.check_growth(step, draft.group, code)
        group, soft = self.carry_out(step, decision.records, decision.answer.member_id, limits)
        answer = soft.on_heartbeat(group, request, decision, now_ms)
        if soft.begin_matching(group, self._topics.version, request.rights_version, now_ms):
            # Not awaited: a slow pattern must delay no heartbeat. Later ones bring what it matches.
            self._tasks.spawn(self._match_again(step.shard, group.group_id, soft, may_describe))
        return answer, step.shard, soft.rests_on

    async def _leave(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        step = self._shards.step(request.group_id)
        group = step.state.find_consumer_group(request.group_id)
        member = leaving_member(group, request)
        # Without an instance id no later member can take this one's place, so it leaves for good.
        if request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is not None:
            self._append(step, decide_absence(group, member))
            step.soft.timers.on_absence(member.member_id)
        else:
            self.remove(step, group, [member.member_id])
        await step.all_durable()
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    # --- steps, for the requests of both protocols

    def carry_out(
        self,
        step: Step,
        records: Sequence[ConsumerGroupRecord],
        member_id: str,
        limits: ConsumerLimits,
    ) -> tuple[ConsumerGroup, SoftState]:
        """Append and apply the records of a member's request, restart timers; return the group.

        The soft state is new where the records made the group, so it is returned too. A classic
        group of that id is deleted in the same step, and its parked requests are refused.
        """
        groups = step.state.consumer_groups
        known = groups.get(step.group_id)
        before = None if known is None else known.members.get(member_id)
        try:
            self._append(step, records)
        finally:
            # Also if a record was too large, and only those before it were written: a member
            # without a session would stay for ever.
            group, soft = groups.get(step.group_id), step.soft
            if group is not None:
                # The members of an upgraded group have no timers yet: all of them get one.
                speaker = None if known is None else member_id
                session_ms = limits.session_timeout_ms
                soft.restart_timers(group, speaker, before, session_ms, step.now_ms)
                self._timers.watch(step.group_id, soft.timers.wake_ms, step.now_ms)
        assert group is not None, "the records of a member's request leave its group behind"
        soft.topics_seen = self._topics.version
        return group, soft

    def notice_topics(self, step: Step, group: ConsumerGroup) -> None:
        """Raise the group's epoch where topics that it reads have changed; O(1) where none has."""
        if step.soft.topics_seen != self._topics.version:
            self._append(step, next_epoch(group, self._topics, changed=False))
            step.soft.topics_seen = self._topics.version

    def remove(self, step: Step, group: ConsumerGroup, member_ids: Sequence[str]) -> None:
        """Remove the members. The group becomes a classic one, if only classic members are left."""
        if not self.downgrade_if_due(step, group, member_ids):
            self._append(step, decide_removal(group, member_ids, self._topics))
            self.watch(step)

    def downgrade_if_due(
        self,
        step: Step,
        group: ConsumerGroup,
        leaving: Collection[str],
        *,
        must_rebalance: bool = True,
    ) -> bool:
        """Make the group a classic one if only classic members are left; return whether it was.

        Its members then join again, unless their assignment is still right.
        """
        if not is_downgrade_due(group, leaving, self.settings.of(step.group_id)):
            return False
        limits = step.state.limits
        classic, value = downgraded(group, leaving, self._topics, limits, step.now_ms)
        # Members were told the name of their own first protocol, and name it in their sync.
        names = {member.protocols[0][0] for member in classic.members.values()}
        must_rebalance |= names != {classic.protocol_name}
        # First, so that in replay too the id is of one kind of group at a time.
        step.shard.append_in_parts(deletion(group), step.now_ms)
        _log.info("group downgraded", group_id=step.group_id, members=len(classic.members))
        self._classic.take_over(step, classic, value, must_rebalance=must_rebalance)
        return True

    def watch(self, step: Step) -> None:
        """Look at the group again when the next timer of a member runs out."""
        self._timers.watch(step.group_id, step.soft.timers.wake_ms, step.now_ms)

    def _append(self, step: Step, records: Sequence[ConsumerGroupRecord]) -> None:
        if not records:
            return
        shard, group_id, now_ms = step
        classic = shard.state.groups.get(group_id)
        try:
            shard.append_in_parts(shard.state.of_one_kind(group_id, records), now_ms)
        finally:
            # Also where a record was too large: the classic group's deletion came first.
            if classic is not None and classic.state is GroupState.DEAD:
                self._classic.give(refuse_all_parked(classic), shard.log.log_end_offset)
                _log.info("group upgraded", group_id=group_id, members=len(classic.members))

    # --- deadlines

    def resume(self, shard: RunningGroupShard, now_ms: int) -> None:
        """Start the timers of all members of a shard that was just replayed, whole."""
        for group_id, group in shard.state.consumer_groups.items():
            step = Step(shard, group_id, now_ms)
            session_ms = self.settings.of(group_id).session_timeout_ms
            step.soft.restart_timers(group, None, None, session_ms, now_ms)
            self.watch(step)

    def expire(self, step: Step, group: ConsumerGroup) -> None:
        """Give up the members whose time has come."""
        # The rest follow at once: the group's timer is still due.
        expired = step.soft.timers.expired(step.now_ms)[:_EXPIRED_AT_ONCE]
        for member_id, timer in expired:
            why = timer.value
            _log.info("member removed", group_id=step.group_id, member_id=member_id, why=why)
        if expired:
            self.remove(step, group, [each.member_id for each in expired])
        else:
            self.watch(step)

    # --- regular expressions

    async def _with_resolved_regex(
        self, request: HeartbeatRequest, regex: str, may_describe: Callable[[str], bool]
    ) -> HeartbeatRequest:
        """Return the request with what its pattern matches, where the group does not know it."""
        state = self._shards.of(request.group_id).state
        limits = self.settings.of(request.group_id)
        group = state.draft(request, self._topics, limits).group
        if regex in group.regexes:
            return request
        # As in Kafka: a member that may not speak is told so, whatever its pattern.
        speaking_member(group, request, limits)
        return replace(request, resolved=await self._resolve(regex, may_describe))

    async def _resolve(self, regex: str, may_describe: Callable[[str], bool]) -> ResolvedRegex:
        # Read before the wait: topics made meanwhile raise the version, and are matched later.
        version = self._topics.version
        matching = await patterns.matching(regex, self._topics.names())
        known = [name async for name in self._turns.each(matching) if may_describe(name)]
        return ResolvedRegex(frozenset(known), version, self._clock.now_ms())

    async def _match_again(
        self,
        shard: RunningGroupShard,
        group_id: str,
        soft: SoftState,
        may_describe: Callable[[str], bool],
    ) -> None:
        group = shard.state.consumer_groups.get(group_id)
        regexes = () if group is None else tuple(group.regex_members)
        is_left = False
        try:
            found = {regex: await self._resolve(regex, may_describe) for regex in regexes}
            # Once more: the group may have gone while its patterns were matched.
            group = shard.state.consumer_groups.get(group_id)
            if group is not None:
                records = decide_regexes(group, found, self._topics)
                self._append(Step(shard, group_id, self._clock.now_ms()), records)
        except KafkaError as refusal:
            # Too many patterns wait: a change of ACLs has those of all groups matched at once.
            is_left = refusal.code.retriable
            if not is_left:
                # A pattern that another broker has accepted, or too many topics for one record.
                _log.warning("patterns not resolved", group_id=group_id, reason=str(refusal))
        finally:
            soft.end_matching(self._clock.steady_ms(), is_left=is_left)
