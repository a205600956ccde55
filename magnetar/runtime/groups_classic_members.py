"""Members of the classic protocol in consumer groups, at work: while a group is migrated.

Owns no rule: they are in `coordinator.groups.consumer.classic_members`. Nothing is parked: joins
and syncs are answered as soon as they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    known_classic_member,
    known_leaving_member,
    must_join_again,
)
from coordinator.groups.consumer.group import ConsumerGroup, Draft
from coordinator.groups.consumer.member import Member
from coordinator.groups.consumer.soft_state import Wait
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.runtime.groups import Groups
    from magnetar.runtime.groups_shard import RunningShard

_NO_MIGRATION = "disabled"


class ClassicMembers:
    """The classic protocol's requests, where the group is a consumer group."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups

    async def join(
        self, shard: RunningShard, group: ConsumerGroup, request: JoinRequest
    ) -> JoinAnswer:
        """Return the member's generation; as `decide_join` refuses."""
        if self._broker.config.group_consumer_migration_policy == _NO_MIGRATION:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because"
                " the group migration is disabled.",
            )
        now_ms = self._broker.clock.steady_ms()
        consumer = self._groups.consumer
        limits = consumer.limits(group.group_id)
        decision = decide_join(Draft(group), request, consumer.topics, limits, now_ms)
        answer = decision.answer
        if answer.error_code is not ErrorCode.NONE:
            return answer
        records = decision.records
        consumer.carry_out(shard, group.group_id, records, answer.member_id, limits, now_ms)
        group.timers.clear(Wait.JOIN, answer.member_id)
        self._wait(group, Wait.SYNC, group.members[answer.member_id], now_ms)
        consumer.downgrade_if_due(shard, group, (), now_ms)
        await shard.log.durable(shard.log.end_offset)
        return answer

    async def sync(
        self, shard: RunningShard, group: ConsumerGroup, request: SyncRequest
    ) -> SyncAnswer:
        """Return the member's assignment; as `answer_sync` refuses."""
        now_ms = self._broker.clock.steady_ms()
        try:
            answer = answer_sync(group, request, self._groups.consumer.topics)
        except KafkaError as refusal:
            self._expect_join(group, request.member_id, refusal.code, now_ms)
            raise
        group.timers.clear(Wait.SYNC, request.member_id)
        self._restart_session(group, group.members[request.member_id], now_ms)
        await shard.log.durable(group.rests_on)
        return answer

    def heartbeat(
        self,
        shard: RunningShard,
        group: ConsumerGroup,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None,
    ) -> None:
        """Restart the member's session. REBALANCE_IN_PROGRESS: it is to join again."""
        now_ms = self._broker.clock.steady_ms()
        member, _ = known_classic_member(group, member_id, group_instance_id, generation_id)
        self._restart_session(group, member, now_ms)
        # There may be nobody else who looks.
        self._groups.consumer.notice_topics(shard, group, now_ms)
        if must_join_again(group, member):
            code = ErrorCode.REBALANCE_IN_PROGRESS
            self._expect_join(group, member_id, code, now_ms)
            raise KafkaError(code, f"{group.group_id} is rebalancing")

    async def leave(
        self, shard: RunningShard, group: ConsumerGroup, leaving: Sequence[LeavingMember]
    ) -> list[ErrorCode]:
        """Return a code for each member named, once the group without them is durable.

        Whatever protocol they speak: administrators remove members so.
        """
        codes = []
        gone: dict[str, None] = {}
        for each in leaving:
            try:
                gone[known_leaving_member(group, each).member_id] = None
                codes.append(ErrorCode.NONE)
            except KafkaError as refusal:
                codes.append(refusal.code)
        if gone:
            now_ms = self._broker.clock.steady_ms()
            self._groups.consumer.remove(shard, group, list(gone), now_ms)
        await shard.log.durable(shard.log.end_offset)
        return codes

    def _expect_join(
        self, group: ConsumerGroup, member_id: str, code: ErrorCode, now_ms: int
    ) -> None:
        """A member that was told to join again has its rebalance timeout to do so."""
        member = group.members.get(member_id)
        if code is not ErrorCode.REBALANCE_IN_PROGRESS or member is None:
            return
        if not group.timers.has(Wait.JOIN, member_id):
            self._wait(group, Wait.JOIN, member, now_ms)

    def _wait(self, group: ConsumerGroup, wait: Wait, member: Member, now_ms: int) -> None:
        group.timers.set(wait, member.member_id, now_ms + member.rebalance_timeout_ms)
        self._groups.watch_until(group.group_id, group.timers.wake_ms, now_ms)

    def _restart_session(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        assert member.classic is not None
        session_ms = member.classic.session_timeout_ms
        group.timers.set(Wait.SESSION, member.member_id, now_ms + session_ms)
