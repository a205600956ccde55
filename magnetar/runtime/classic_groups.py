"""Classic groups at work: members join, sync, heartbeat and leave; sessions run out.

The rules are in `coordinator.groups.classic`. A join or a sync is answered through a future, its
token. The step that answers the token fills the future with the answer and the log's end at that
moment; the handler waits for both. So no member hears of a generation that is not durable, and
nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from coordinator.groups.classic.group import ClassicGroup
from coordinator.groups.classic.heartbeats import heartbeat
from coordinator.groups.classic.joining import join
from coordinator.groups.classic.leaving import expire, leave
from coordinator.groups.classic.rebalance import prepare, sync
from coordinator.groups.classic.records import resume
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Outcome,
    SyncAnswer,
    SyncRequest,
    Token,
)
from coordinator.groups.consumer.migration import refuse_all_parked
from coordinator.groups.deletion import group_deletion
from coordinator.groups.records import GroupRecord
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.group_shards import RunningGroupShard, Step
from magnetar.runtime.group_timers import GroupTimers
from magnetar.runtime.request_context import Connection
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.internal.group_metadata import GroupMetadataValue

_log = get_logger("groups")

AnswerT = TypeVar("AnswerT", JoinAnswer, SyncAnswer)


class _Reply(Generic[AnswerT]):
    """What a member waits for: its answer, and the log's end that the answer rests on."""

    __slots__ = ("_connection", "_future")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A future, not a task: the step that completes the generation answers all its members.
        self._future: asyncio.Future[tuple[AnswerT, int]] = asyncio.Future()

    @property
    def is_abandoned(self) -> bool:
        """Whether the client is gone."""
        return self._future.cancelled() or self._connection.is_closing

    def give(self, answer: AnswerT, end_offset: int) -> None:
        """Answer; nothing happens where the client is gone."""
        if not self._future.done():
            self._future.set_result((answer, end_offset))

    async def answered(self, shard: RunningGroupShard) -> AnswerT:
        """Return the answer, once it is given and durable."""
        answer, end_offset = await self._future
        await shard.durable(end_offset)
        return answer


def is_abandoned(token: Token) -> bool:
    """Whether no client waits for the token any more: `GroupLimits.is_abandoned`."""
    return isinstance(token, _Reply) and token.is_abandoned


class ClassicGroups:
    """The requests and the deadlines of classic groups."""

    def __init__(self, timers: GroupTimers, clock: Clock) -> None:
        self._timers = timers
        self._clock = clock

    async def join(self, step: Step, request: JoinRequest, connection: Connection) -> JoinAnswer:
        """Return once the member's generation is formed, or it must come again with its id.

        A member whose `connection` is closed by then is not taken into the generation. An empty
        consumer group of that id becomes a classic one. Refuses as `classic.joining`.
        """
        group = step.state.joinable(step.group_id, request.member_id, step.now_ms)
        reply: _Reply[JoinAnswer] = _Reply(connection)
        try:
            outcome = join(group, request, step.now_ms, reply)
        finally:
            step.state.forget_if_unused(group)
        if step.group_id in step.state.consumer_groups:
            # Only now: a join that is refused changes nothing.
            step.shard.append(group_deletion(step.state, step.group_id), step.now_ms)
        self.carry_out(step, group, outcome)
        return await reply.answered(step.shard)

    async def sync(self, step: Step, request: SyncRequest, connection: Connection) -> SyncAnswer:
        """Return the member's assignment, once the group's leader has sent it.

        Refuses as `classic.rebalance.sync`.
        """
        group = step.state.member_group(step.group_id)
        reply: _Reply[SyncAnswer] = _Reply(connection)
        self.carry_out(step, group, sync(group, request, step.now_ms, reply))
        return await reply.answered(step.shard)

    def heartbeat(
        self, step: Step, member_id: str, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Restart a member's session; the answer rests on nothing that has to be durable."""
        group = step.state.member_group(step.group_id)
        heartbeat(group, member_id, generation_id, group_instance_id, step.now_ms)

    async def leave(self, step: Step, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Return a code for each member named, once the group without them is durable."""
        group = step.state.groups.get(step.group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        codes, outcome = leave(group, leaving, step.now_ms)
        end_offset = self.carry_out(step, group, outcome)
        # A group that only ever gave out member ids leaves no trace.
        step.state.forget_if_unused(group)
        await step.shard.durable(end_offset)
        return codes

    def expire(self, step: Step, group: ClassicGroup) -> None:
        """Remove the members whose time has come."""
        # For the lines in the log: the outcome does not name the members that are gone.
        before = set(group.members)
        self.carry_out(step, group, expire(group, step.now_ms))
        step.state.forget_if_unused(group)
        for member_id in before.difference(group.members):
            _log.info("member removed", group_id=group.group_id, member_id=member_id)

    def resume(self, shard: RunningGroupShard, now_ms: int) -> None:
        """Watch the groups of a shard that was just replayed; some of them rebalance."""
        for group in shard.state.groups.values():
            if group.has_yet_to_join:
                prepare(group, now_ms, Outcome())
            self._timers.watch(group.group_id, group.deadline_ms, now_ms)

    def refuse_all(self, shard: RunningGroupShard) -> None:
        """Refuse what members of the shard's groups wait for: another node coordinates them."""
        for group in shard.state.groups.values():
            outcome = refuse_all_parked(group, ErrorCode.NOT_COORDINATOR)
            self.give(outcome, shard.log.log_end_offset)

    def take_over(
        self, step: Step, group: ClassicGroup, value: GroupMetadataValue, *, must_rebalance: bool
    ) -> None:
        """Take a group that was a consumer group: `value` is its record."""
        step.state.take_over(group)
        # So that a replay knows (`has_yet_to_join`). The time is of no use while there are members.
        value.current_state_timestamp = -1 if must_rebalance else self._clock.now_ms()
        self._persist(step, value)
        # The timers of the consumer protocol ended with the consumer group: every session begins
        # anew.
        resume(group, step.now_ms)
        outcome = Outcome()
        if must_rebalance:
            prepare(group, step.now_ms, outcome)
        self.carry_out(step, group, outcome)

    def carry_out(self, step: Step, group: ClassicGroup, outcome: Outcome) -> int:
        """Append and apply the outcome's record, give its answers, watch the group's deadline.

        Returns the end offset to await.
        """
        end_offset = step.shard.log.log_end_offset
        if outcome.value is not None:
            # Steps go by the steady clock, which begins anew with each run. Offsets outlive a run:
            # the retention of a group that lost its last member is counted from this time.
            outcome.value.current_state_timestamp = self._clock.now_ms()
            end_offset = self._persist(step, outcome.value)
        self.give(outcome, end_offset)
        self._timers.watch(group.group_id, group.deadline_ms, step.now_ms)
        return end_offset

    def give(self, outcome: Outcome, end_offset: int) -> None:
        """Give an outcome's answers, each once what is before `end_offset` is durable."""
        for token, answer in outcome.answers:
            assert isinstance(token, _Reply)
            token.give(answer, end_offset)

    def _persist(self, step: Step, value: GroupMetadataValue) -> int:
        record = GroupRecord(step.group_id, value)
        try:
            return step.shard.append([record], step.now_ms)
        except KafkaError as refusal:
            # A generation too large for a batch goes on in memory: only a restart needs the record.
            _log.warning("group not persisted", group_id=record.group_id, reason=str(refusal))
            step.state.apply(record, step.shard.log.log_end_offset)
            return step.shard.log.log_end_offset
