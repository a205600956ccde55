"""The group coordinator at work: members join, sync, heartbeat and leave; sessions run out.

Owns no rule: they are in `coordinator.groups`. A join or a sync is answered through a future, its
token, which the step that answers it fills in with the log's end at that moment; the handler waits
for both. So no member hears of a generation that is not durable, and nothing polls. One alarm is
set to the earliest deadline of all groups; heartbeats write nothing.

The offsets of groups are next door, in `groups_offsets`, over the same shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import uuid4

from coordinator.groups.classic.group import ClassicGroup, GroupLimits
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
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.records import GroupRecord
from coordinator.partitioning import partition_for
from coordinator.transactions.deadlines import Deadlines
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.logging import get_logger
from magnetar.runtime.alarm import Alarm
from magnetar.runtime.background import report
from magnetar.runtime.groups_classic_members import ClassicMembers
from magnetar.runtime.groups_consumer import ConsumerGroups
from magnetar.runtime.groups_offsets import GroupOffsetCommits, check_group_id
from magnetar.runtime.groups_shard import RunningShard
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import STRING_BYTES_MAX

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.runtime.request_context import Connection

_log = get_logger("groups")

AnswerT = TypeVar("AnswerT", JoinAnswer, SyncAnswer)


class _Reply(Generic[AnswerT]):
    """What a member waits for: its answer, and the log's end that the answer rests on."""

    __slots__ = ("_connection", "_future")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._future: asyncio.Future[tuple[AnswerT, int]] = asyncio.Future()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits any more."""
        return self._future.cancelled() or self._connection.is_closing

    def give(self, answer: AnswerT, end_offset: int) -> None:
        """Answer; to nobody, if the client is gone."""
        if not self._future.done():
            self._future.set_result((answer, end_offset))

    async def answered(self, shard: RunningShard) -> AnswerT:
        """Return the answer, once it is given and durable."""
        answer, end_offset = await self._future
        await shard.log.durable(end_offset)
        return answer


def _is_abandoned(token: Token) -> bool:
    return isinstance(token, _Reply) and token.is_abandoned


class Groups:
    """The coordinator of every group. `consumer` are those of the consumer protocol, `offsets` is
    what all of them commit."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: list[RunningShard] = []
        #: Groups that a log holds elsewhere than where they would belong, as older versions put
        #: those whose hash is negative: there they stay.
        self._displaced: dict[str, int] = {}
        self._deadlines = Deadlines()
        self._alarm = Alarm(self._on_alarm)
        self._retention_alarm = Alarm(self._on_retention_alarm)
        self._retention_due_ms = 0
        self._work: set[asyncio.Task[None]] = set()
        self.offsets = GroupOffsetCommits(broker, self)
        self.consumer = ConsumerGroups(broker, self)
        self.classic_members = ClassicMembers(broker, self)

    async def start(self) -> None:
        """Replay every shard. Before the transaction coordinator, whose markers come here."""
        self._broker.topics.on_deleted.append(lambda topic: self.on_topic_deleted(topic.name))
        if self._broker.topics.by_name(CONSUMER_OFFSETS) is not None:
            self._open_shards()

    async def stop(self) -> None:
        """Expire nobody any more."""
        self._alarm.cancel()
        self._retention_alarm.cancel()
        for task in self._work:
            task.cancel()

    # --- membership

    async def join(self, group_id: str, request: JoinRequest, connection: Connection) -> JoinAnswer:
        """Return once the member's generation is formed, or it must come again with its id.

        A member whose `connection` is closed by then is not taken into the generation.
        INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, POLICY_VIOLATION, and what `classic.joining`
        refuses with.
        """
        config = self._broker.config
        session_ms = request.session_timeout_ms
        least_ms, most_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        check_group_id(group_id)
        if not least_ms <= session_ms <= most_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout of {session_ms} ms, allowed are {least_ms} to {most_ms}"
                " (group.min.session.timeout.ms, group.max.session.timeout.ms)",
            )
        shard = self.shard_of(group_id)
        now_ms = self._broker.clock.steady_ms()
        consumer_group = shard.state.consumer_groups.get(group_id)
        if consumer_group is not None and consumer_group.members:
            return await self.classic_members.join(shard, consumer_group, request)
        if not request.member_id:
            self.refuse_beyond_limit(shard, group_id)
        group = shard.state.joinable(group_id, request.member_id, now_ms)
        reply: _Reply[JoinAnswer] = _Reply(connection)
        try:
            outcome = join(group, request, now_ms, reply)
        finally:
            shard.state.forget_if_unused(group)
        if consumer_group is not None:
            # It was empty, and is a classic one now; a join that is refused changes nothing.
            shard.append(shard.state.group_deletion(group_id), now_ms)
        self._carry_out(shard, group, outcome, now_ms)
        return await reply.answered(shard)

    async def sync(self, group_id: str, request: SyncRequest, connection: Connection) -> SyncAnswer:
        """Return the member's assignment, once the leader has brought it.

        INVALID_GROUP_ID, and what `classic.syncing` refuses with.
        """
        check_group_id(group_id)
        shard = self.shard_of(group_id)
        now_ms = self._broker.clock.steady_ms()
        consumer_group = shard.state.consumer_groups.get(group_id)
        if consumer_group is not None:
            return await self.classic_members.sync(shard, consumer_group, request)
        group = shard.state.member_group(group_id)
        reply: _Reply[SyncAnswer] = _Reply(connection)
        outcome = sync(group, request, now_ms, reply)
        self._carry_out(shard, group, outcome, now_ms)
        return await reply.answered(shard)

    def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Restart a member's session; it rests on nothing that has to be durable."""
        check_group_id(group_id)
        shard = self.shard_of(group_id)
        state = shard.state
        now_ms = self._broker.clock.steady_ms()
        consumer_group = state.consumer_groups.get(group_id)
        if consumer_group is not None:
            self.classic_members.heartbeat(
                shard, consumer_group, member_id, generation_id, group_instance_id
            )
            return
        group = state.member_group(group_id)
        heartbeat(group, member_id, generation_id, group_instance_id, now_ms)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Return a code for each member named, once the group without them is durable."""
        check_group_id(group_id)
        shard = self.shard_of(group_id)
        now_ms = self._broker.clock.steady_ms()
        consumer_group = shard.state.consumer_groups.get(group_id)
        if consumer_group is not None:
            return await self.classic_members.leave(shard, consumer_group, leaving)
        group = shard.state.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        codes, outcome = leave(group, leaving, now_ms)
        end_offset = self._carry_out(shard, group, outcome, now_ms)
        shard.state.forget_if_unused(group)
        await shard.log.durable(end_offset)
        return codes

    # --- questions and deletion

    def find(self, group_id: str) -> ClassicGroup:
        """Return the group as it is now. Raises GROUP_ID_NOT_FOUND.

        Await `durable` with its id before anyone hears of what was read from it.
        """
        return self.shard_of(group_id).state.find(group_id)

    def find_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group as it is now. Raises GROUP_ID_NOT_FOUND. As `find`."""
        return self.shard_of(group_id).state.find_consumer_group(group_id)

    def all(self) -> list[ClassicGroup | ConsumerGroup]:
        """Return every group that has members, had any, or has offsets; by id. As `find`."""
        found = [
            shard.state.consumer_groups.get(group_id) or shard.state.find(group_id)
            for shard in self._shards
            for group_id in shard.state.group_ids()
        ]
        return sorted(found, key=lambda group: group.group_id)

    async def durable(self, group_ids: Iterable[str]) -> None:
        """Return when all that the groups' shards hold at the moment of the call is durable."""
        shards = {self.partition_of(group_id) for group_id in group_ids}
        ends = [(self._shards[index].log, self._shards[index].log.end_offset) for index in shards]
        for log, end_offset in ends:
            await log.durable(end_offset)

    async def delete(self, group_id: str) -> None:
        """Return when the group and all its offsets are gone, durably.

        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        shard = self.shard_of(group_id)
        records = shard.state.decide_delete(group_id)
        await shard.log.durable(shard.append_in_parts(records, self._broker.clock.now_ms()))

    def on_topic_deleted(self, name: str) -> None:
        """Forget what was committed for a topic that is gone: its name may come back."""
        now_ms = self._broker.clock.now_ms()
        for shard in self._shards:
            shard.append_in_parts(shard.state.offsets.deletion_of_topic(name), now_ms)

    def append_marker(
        self, partition_index: int, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append a marker to a partition of `__consumer_offsets`; return log and end to await.

        Pending acks are resolved in the same step. UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        if not self._shards and self._broker.topics.by_name(CONSUMER_OFFSETS) is not None:
            self._open_shards()
        if not 0 <= partition_index < len(self._shards):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{CONSUMER_OFFSETS} has {len(self._shards)} partitions, none is {partition_index}",
            )
        return self._shards[partition_index].append_marker(marker, now_ms)

    # --- shards

    def shard_of(self, group_id: str) -> RunningShard:
        """Return the shard that coordinates the group; the topic is made when first needed."""
        return self._shards[self.partition_of(group_id)]

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group. As `shard_of`."""
        if not self._shards:
            self._open_shards()
        if self._displaced and group_id in self._displaced:
            return self._displaced[group_id]
        return partition_for(group_id, len(self._shards))

    def refuse_beyond_limit(self, shard: RunningShard, group_id: str) -> None:
        """Raise POLICY_VIOLATION where this would be one group more than `max.groups`.

        So no client, with as many groups as it likes, has the broker run out of memory.
        """
        limit = self._broker.config.max_groups
        if not limit or shard.state.exists(group_id):
            return
        with_members = sum(each.state.member_group_count for each in self._shards)
        with_offsets = sum(each.state.offsets.group_count for each in self._shards)
        if max(with_members, with_offsets) >= limit:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"there are {limit} groups already (max.groups), {group_id} would be one more",
            )

    def watch(self, group: ClassicGroup, now_ms: int) -> None:
        """Have the group looked at when its next deadline comes. After whatever may bring one."""
        self.watch_until(group.group_id, group.deadline_ms, now_ms)

    def watch_until(self, group_id: str, due_ms: int | None, now_ms: int) -> None:
        """Have a group of either kind looked at then. None: nothing is due."""
        if due_ms is not None:
            self._deadlines.schedule(group_id, due_ms)
            self._alarm.set(due_ms, now_ms)

    def _open_shards(self) -> None:
        config = self._broker.config
        limits = GroupLimits(
            size_max=config.group_max_size,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            is_abandoned=_is_abandoned,
        )
        now_ms = self._broker.clock.steady_ms()
        topic = self._broker.topics.ensure_internal(CONSUMER_OFFSETS)
        for log in topic.partitions:
            shard = RunningShard(log, limits)
            shard.replay(now_ms)
            self._shards.append(shard)
            for group in shard.state.groups.values():
                self.watch(group, now_ms)
            self.consumer.resume(shard, now_ms)
        for index, shard in enumerate(self._shards):
            for group_id in shard.state.group_ids():
                home = partition_for(group_id, len(self._shards))
                if home != index and not self._shards[home].state.exists(group_id):
                    self._displaced[group_id] = index
        self._check_retention_later(now_ms)

    # --- one step

    def _carry_out(
        self, shard: RunningShard, group: ClassicGroup, outcome: Outcome, now_ms: int
    ) -> int:
        """Make an outcome so: its record, its answers, its deadline. Returns the end to await."""
        end_offset = shard.log.end_offset
        if outcome.value is not None:
            end_offset = self.persist(shard, GroupRecord(group.group_id, outcome.value), now_ms)
        self.give(outcome, end_offset)
        self.watch(group, now_ms)
        return end_offset

    def persist(self, shard: RunningShard, record: GroupRecord, now_ms: int) -> int:
        """Append and apply a generation. Returns the end to await."""
        try:
            return shard.append([record], now_ms)
        except KafkaError as refusal:
            # The generation lives on in memory; only a restart would have needed the record.
            _log.warning("group not persisted", group_id=record.group_id, reason=str(refusal))
            shard.state.apply(record, shard.log.end_offset)
            return shard.log.end_offset

    def give(self, outcome: Outcome, end_offset: int) -> None:
        """Answer whoever an outcome answers, once what is before `end_offset` is durable."""
        for token, answer in outcome.answers:
            assert isinstance(token, _Reply)
            token.give(answer, end_offset)

    def rebalance(self, shard: RunningShard, group: ClassicGroup, now_ms: int) -> None:
        """Have all members of a classic group that was just made of another join again."""
        resume(group, now_ms)
        outcome = Outcome()
        prepare(group, now_ms, outcome)
        self._carry_out(shard, group, outcome, now_ms)

    # --- time

    def _on_alarm(self) -> None:
        self.spawn(self._expire_due())

    async def _expire_due(self) -> None:
        now_ms = self._broker.clock.steady_ms()
        for group_id in self._deadlines.take_due(now_ms):
            shard = self.shard_of(group_id)
            consumer_group = shard.state.consumer_groups.get(group_id)
            if consumer_group is not None:
                self.consumer.expire(shard, consumer_group, now_ms)
            group = shard.state.groups.get(group_id)
            if group is None:
                continue
            before = set(group.members)
            self._carry_out(shard, group, expire(group, now_ms), now_ms)
            shard.state.forget_if_unused(group)
            for member_id in before.difference(group.members):
                _log.info("member removed", group_id=group_id, member_id=member_id)
        self._alarm.set(self._deadlines.next_ms(), now_ms)

    def _check_retention_later(self, now_ms: int) -> None:
        self._retention_due_ms = now_ms + self._broker.config.offsets_retention_check_interval_ms
        self._retention_alarm.set(self._retention_due_ms, now_ms)

    def _on_retention_alarm(self) -> None:
        now_ms = self._broker.clock.steady_ms()
        if now_ms < self._retention_due_ms:
            self._retention_alarm.set(self._retention_due_ms, now_ms)
        else:
            self.spawn(self._expire_offsets())

    async def _expire_offsets(self) -> None:
        """Delete offsets that no group has used for offsets.retention.minutes, shard by shard."""
        retention_ms = self._broker.config.offsets_retention_minutes * 60_000
        now_ms = self._broker.clock.now_ms()
        for shard in self._shards:
            for group_id in shard.state.group_ids():
                expired = shard.state.decide_expiry(group_id, now_ms, retention_ms)
                shard.append_in_parts(expired, now_ms)
            await asyncio.sleep(0)
        self._check_retention_later(self._broker.clock.steady_ms())

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Have work done that nobody waits for; a failure ends the broker."""
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._on_work_done)

    def _on_work_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        report(task, self._broker.fail)


def new_member_id(prefix: str | None) -> str:
    """Return a member id nobody has, named after the client or the instance it is for.

    As much of that as a string of the protocol has room for.
    """
    unique = f"-{uuid4()}"
    named = (prefix or "").encode()[: STRING_BYTES_MAX - len(unique)]
    return named.decode(errors="ignore") + unique
