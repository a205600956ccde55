"""The group coordinator: finds the group that a request names, and hands the request on.

A group is a classic group or a consumer group. JoinGroup, SyncGroup, Heartbeat and LeaveGroup may
name either kind. The modules that serve them share the same `group_shards`: `classic_groups`,
`consumer_groups`, `classic_members` (members of a consumer group that use the classic protocol) and
`group_offsets`. The rules are in `coordinator.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

from coordinator.groups.classic.group import ClassicGroup, GroupLimits
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    check_group_id,
    check_protocols,
    check_session_timeout,
)
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.deletion import decide_deletion
from coordinator.groups.offsets.committed import CommittedOffset, OffsetKey
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.background import Tasks
from magnetar.runtime.classic_groups import ClassicGroups, is_abandoned
from magnetar.runtime.classic_members import ClassicMembers
from magnetar.runtime.consumer_groups import ConsumerGroups, GroupSettings
from magnetar.runtime.group_offsets import GroupOffsets, OffsetsRetention
from magnetar.runtime.group_shards import GroupShards, RunningGroupShard, Step
from magnetar.runtime.group_timers import GroupTimers
from magnetar.runtime.request_context import Connection
from magnetar.runtime.topic_image import BrokerTopics
from magnetar.runtime.turns import Turns
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode

#: How much of a client's name, or of an instance id, a member id begins with.
_NAMED_BYTES_MAX = 2048


class Groups:
    """The coordinator of every group.

    `consumer` serves the groups of the consumer protocol, `offsets` what groups of both commit.
    """

    def __init__(
        self,
        topics: Topics,
        stored_configs: StoredConfigs,
        clock: Clock,
        config: BrokerConfig,
        fail: Callable[[BaseException], None],
        turns: Turns,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._config = config
        limits = GroupLimits(
            size_max=config.group_max_size,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            is_abandoned=is_abandoned,
        )
        image = BrokerTopics(topics)
        self.tasks = Tasks(fail)
        self.timers = GroupTimers(clock, self.tasks, self._expire)
        self.shards = GroupShards(
            topics, clock, config, limits, self._on_replayed, self._on_unloaded
        )
        self.retention = OffsetsRetention(self.shards, clock, config, self.tasks, turns)
        self.offsets = GroupOffsets(
            self.shards, self.timers, topics, clock, config, self.tasks, turns
        )
        self._classic = ClassicGroups(self.timers, clock)
        self.consumer = ConsumerGroups(
            self.shards,
            self.timers,
            self._classic,
            image,
            GroupSettings(config, stored_configs),
            clock,
            self.tasks,
            turns,
        )
        self._classic_members = ClassicMembers(self.shards, self.consumer, image)

    async def start(self) -> None:
        """Replay every shard. Before the transaction coordinator, whose markers come here."""
        self._topics.deletion.on_deleted.append(
            lambda topic: self.offsets.on_topic_deleted(topic.name, topic.id)
        )
        await self.shards.start()

    def stop(self) -> None:
        """Expire no members and no offsets any more."""
        self.timers.cancel()
        self.tasks.cancel()

    # --- membership: JoinGroup, SyncGroup, Heartbeat, LeaveGroup

    async def join(self, group_id: str, request: JoinRequest, connection: Connection) -> JoinAnswer:
        """Return once the member's generation is formed, or if it has to join again by its new id.

        A member whose `connection` is closed by then is not taken into the generation. Raises
        INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, POLICY_VIOLATION; else as `classic.joining` or
        `consumer.classic_members`.
        """
        config = self._config
        check_group_id(group_id)
        check_session_timeout(
            request.session_timeout_ms,
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
        )
        check_protocols(request.protocols)
        step, consumer_group = self._find(group_id)
        # A consumer group without members becomes a classic group by this join.
        if consumer_group is not None and consumer_group.members:
            return await self._classic_members.join(step, consumer_group, request)
        # A member with an id is in a group that counts already.
        if not request.member_id:
            self.shards.check_count(group_id, step.state)
        self.shards.check_metadata_room(step, request)
        return await self._classic.join(step, request, connection)

    async def sync(self, group_id: str, request: SyncRequest, connection: Connection) -> SyncAnswer:
        """Return the member's assignment, once it is known.

        Raises INVALID_GROUP_ID, POLICY_VIOLATION; else as `classic.rebalance` or
        `consumer.classic_members`.
        """
        check_group_id(group_id)
        step, consumer_group = self._find(group_id)
        if consumer_group is not None:
            return await self._classic_members.sync(step, consumer_group, request)
        self.shards.check_assignment_room(step, request)
        return await self._classic.sync(step, request, connection)

    def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Restart a member's session."""
        check_group_id(group_id)
        step, consumer_group = self._find(group_id)
        said = (member_id, generation_id, group_instance_id)
        if consumer_group is not None:
            self._classic_members.heartbeat(step, consumer_group, *said)
        else:
            self._classic.heartbeat(step, *said)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Return a code for each member named, once the group without them is durable."""
        check_group_id(group_id)
        step, consumer_group = self._find(group_id)
        if consumer_group is not None:
            return await self._classic_members.leave(step, consumer_group, leaving)
        return await self._classic.leave(step, leaving)

    def _find(self, group_id: str) -> tuple[Step, ConsumerGroup | None]:
        """Begin a step on the group; return the group too, if it is a consumer group."""
        step = self.shards.step(group_id)
        return step, step.state.consumer_groups.get(group_id)

    # --- questions and deletion

    def find(self, group_id: str) -> ClassicGroup:
        """Return the classic group as it is now. Raises GROUP_ID_NOT_FOUND.

        Await `shards.durable` with its id before a client hears of what was read from it.
        """
        return self.shards.of(group_id).state.find(group_id)

    def is_consumer_group(self, group_id: str) -> bool:
        """Return whether the group is led here, has members and is a consumer group."""
        # Not by `shards.of`: that refuses a group of another node, and opens all shards at first.
        found = (shard.state.consumer_groups.get(group_id) for shard in self.shards)
        return any(group is not None and bool(group.members) for group in found)

    def find_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group as it is now. Raises GROUP_ID_NOT_FOUND. As `find`."""
        return self.shards.of(group_id).state.find_consumer_group(group_id)

    def committed(self) -> Iterator[tuple[str, Iterator[tuple[OffsetKey, CommittedOffset]]]]:
        """Yield each group that has committed offsets, with these; in the order of shards."""
        for shard in self.shards:
            offsets = shard.state.offsets
            for group_id in offsets.groups():
                yield group_id, offsets.of_group(group_id)

    def all(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        """Yield every group that has members, had any, or has offsets. As `find`.

        In the order of shards. The caller may let other requests go on between two groups: a group
        that is deleted meanwhile is left out.
        """
        for shard in self.shards:
            state = shard.state
            for group_id in state.group_ids():
                if state.exists(group_id):
                    yield state.consumer_groups.get(group_id) or state.find(group_id)

    def delete(self, group_id: str) -> tuple[RunningGroupShard, int]:
        """Delete the group and all its offsets; return its shard, and the end offset to await.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        shard = self.shards.of(group_id)
        records = decide_deletion(shard.state, group_id)
        return shard, shard.append_in_parts(records, self._clock.now_ms())

    # --- what timers and shards call

    def _expire(self, group_id: str, now_ms: int) -> None:
        """Remove the members of a group whose timers have run out."""
        shard = self.shards.known(group_id)
        if shard is None:
            return  # Another node has the group since.
        step = Step(shard, group_id, now_ms)
        consumer_group = step.state.consumer_groups.get(group_id)
        if consumer_group is not None:
            self.consumer.expire(step, consumer_group)
        # A consumer group may just have become a classic one.
        group = step.state.groups.get(group_id)
        if group is not None:
            self._classic.expire(step, group)

    def _on_replayed(self, shard: RunningGroupShard, now_ms: int) -> None:
        self._classic.resume(shard, now_ms)
        self.consumer.resume(shard, now_ms)
        self.retention.begin()

    def _on_unloaded(self, shard: RunningGroupShard) -> None:
        self._classic.refuse_all(shard)


def new_member_id(prefix: str | None) -> str:
    """Return a new, unique member id, named after the client or the instance it is for.

    A long name is cut: an id that was given out is kept until its member comes, and a group may
    keep a thousand of them.
    """
    unique = f"-{uuid4()}"
    named = (prefix or "").encode()[:_NAMED_BYTES_MAX]
    return named.decode(errors="ignore") + unique
