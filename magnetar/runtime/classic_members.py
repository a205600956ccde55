"""Members of the classic protocol in consumer groups, at work: while a group is migrated.

The rules are in `coordinator.groups.consumer.classic_members`. No request is parked: joins and
syncs are answered as soon as they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from coordinator.groups.consumer.classic_members import (
    answer_sync,
    decide_join,
    is_gone,
    known_classic_member,
    known_leaving_member,
    must_join_again,
)
from coordinator.groups.consumer.group import ConsumerGroup, ConsumerGroupState, Draft
from magnetar.runtime.consumer_groups import ConsumerGroups
from magnetar.runtime.group_shards import GroupShards, Step
from magnetar.runtime.topic_image import BrokerTopics
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class ClassicMembers:
    """The classic protocol's requests, where the group is a consumer group."""

    def __init__(self, shards: GroupShards, consumer: ConsumerGroups, topics: BrokerTopics) -> None:
        self._shards = shards
        self._consumer = consumer
        self._topics = topics

    async def join(self, step: Step, group: ConsumerGroup, request: JoinRequest) -> JoinAnswer:
        """Return the member's generation. Refuses as `decide_join`."""
        answer = self._join(step, group, request)
        # MEMBER_ID_REQUIRED: nothing has changed yet.
        if answer.error_code is ErrorCode.NONE:
            await step.all_durable()
        return answer

    def _join(self, step: Step, group: ConsumerGroup, request: JoinRequest) -> JoinAnswer:
        """Carry out a join. The draft, a copy of the group, ends before the wait for a sync."""
        consumer = self._consumer
        limits = consumer.settings.of(group.group_id)
        draft = Draft(group)
        decision = decide_join(draft, step.soft, request, self._topics, limits, step.now_ms)
        answer = decision.answer
        if answer.error_code is not ErrorCode.NONE:
            return answer
        self._shards.check_growth(step, draft.group, ErrorCode.POLICY_VIOLATION)
        member_id = answer.member_id
        group, soft = consumer.carry_out(step, decision.records, member_id, limits)
        soft.timers.on_classic_join(group.members[member_id], step.now_ms)
        consumer.watch(step)
        # The last consumer member may just have come back as a classic one. Another member may yet
        # have something to give back or to take: in a classic group only a join tells it so.
        has_to_join = group.state is not ConsumerGroupState.STABLE
        consumer.downgrade_if_due(step, group, (), must_rebalance=has_to_join)
        return answer

    async def sync(self, step: Step, group: ConsumerGroup, request: SyncRequest) -> SyncAnswer:
        """Return the member's assignment. Refuses as `answer_sync`."""
        soft = step.soft
        try:
            answer = answer_sync(group, request, self._topics)
        except KafkaError as refusal:
            if refusal.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._tell_to_join(step, group, request.member_id)
            raise
        soft.timers.on_classic_sync(group.members[request.member_id], step.now_ms)
        # The assignment may have been given a moment ago: it must not be lost once a client has it.
        await step.shard.durable(soft.rests_on)
        return answer

    def heartbeat(
        self,
        step: Step,
        group: ConsumerGroup,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None,
    ) -> None:
        """Restart the member's session. REBALANCE_IN_PROGRESS: the member is to join again."""
        member, _ = known_classic_member(group, member_id, group_instance_id, generation_id)
        step.soft.timers.on_classic_heartbeat(member, step.now_ms)
        # The group may have no other member whose heartbeats look at the topics.
        self._consumer.notice_topics(step, group)
        if must_join_again(group, member):
            self._tell_to_join(step, group, member_id)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")

    async def leave(
        self, step: Step, group: ConsumerGroup, leaving: Sequence[LeavingMember]
    ) -> list[ErrorCode]:
        """Return a code for each member named, once the group without them is durable.

        Members of either protocol: administrators remove them so.
        """
        codes = []
        # By member: one that is named by its id and by its instance leaves once.
        gone: dict[str, None] = {}
        for each in leaving:
            # As below, without an exception: an administrator may name many that have gone.
            if is_gone(group, each):
                codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
                continue
            try:
                gone[known_leaving_member(group, each).member_id] = None
                codes.append(ErrorCode.NONE)
            except KafkaError as refusal:
                codes.append(refusal.code)
        if gone:
            self._consumer.remove(step, group, list(gone))
        await step.all_durable()
        return codes

    def _tell_to_join(self, step: Step, group: ConsumerGroup, member_id: str) -> None:
        step.soft.timers.on_told_to_join(group.members[member_id], step.now_ms)
        self._consumer.watch(step)
