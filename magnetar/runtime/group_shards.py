"""The shards of the group coordinator: the partitions of `__consumer_offsets`, replayed.

The topic is created when a request first names a group. A group lives in the partition that its id
hashes to, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from coordinator.groups.classic.group import GroupLimits, said_bytes
from coordinator.groups.classic.rebalance import assigns
from coordinator.groups.classic.requests import JoinRequest, SyncRequest
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.soft_state import SoftState
from coordinator.groups.member_room import has_room, no_room
from coordinator.groups.records import ShardRecord, decode, encode
from coordinator.groups.shard import GroupShard, check_group_count
from coordinator.partitioning import partition_for
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.shard import LOADING, RecordFormat, RunningShard
from magnetar.storage.leaders import Elsewhere, Partition, leader_id, shard_missing
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import SimpleRecord

_log = get_logger("groups")

RunningGroupShard = RunningShard[GroupShard, ShardRecord]


def _encode(record: ShardRecord, now_ms: int, batch_bytes_max: int) -> SimpleRecord:
    # Without the constructor, which is slow Python code: a commit may have ten thousand records.
    made: SimpleRecord = tuple.__new__(SimpleRecord, (*encode(record), now_ms, ()))
    return made


#: Hashing so many group ids takes some milliseconds.
_MANY = 1_000
#: The log refuses a batch that is too large.
RECORD_FORMAT = RecordFormat[ShardRecord](_encode, decode)


class Step(NamedTuple):
    """One step on one group: its shard, its id, and the steady time of the step in ms."""

    shard: RunningGroupShard
    group_id: str
    now_ms: int

    @property
    def state(self) -> GroupShard:
        """The state of the group's shard."""
        return self.shard.state

    @property
    def soft(self) -> SoftState:
        """The soft state of the group, which is a consumer group or about to be one."""
        return self.shard.state.soft_state(self.group_id)

    def all_durable(self) -> Coroutine[Any, Any, None]:
        """Return a wait until all that the shard's log holds now survives a power loss."""
        return self.shard.durable(self.shard.log.log_end_offset)


class GroupShards:
    """All shards, in the order of their partitions; opened together, when one is first needed."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        config: BrokerConfig,
        limits: GroupLimits,
        on_replayed: Callable[[RunningGroupShard, int], None],
        on_unloaded: Callable[[RunningGroupShard], None],
    ) -> None:
        """`on_replayed` is called with each shard that is ready, and the steady time in ms;
        `on_unloaded` with each shard that moves to another node."""
        self._topics = topics
        self._clock = clock
        self._config = config
        self._limits = limits
        self._on_replayed = on_replayed
        self._on_unloaded = on_unloaded
        #: By partition; None where another node has the shard.
        self._shards: list[RunningGroupShard | None] = []
        self._states: list[GroupShard] = []
        #: Whether the log has said that members have no room.
        self._is_full_logged = False

    def __iter__(self) -> Iterator[RunningGroupShard]:
        """The shards that are open here: none before the topic is made."""
        return iter([shard for shard in self._shards if shard is not None])

    async def start(self) -> None:
        """Replay the shards, if the topic is there, before anything else asks for them.

        In a thread: the event loop hears signals meanwhile, and a node keeps its lease.
        """
        topic = self._topics.by_name(CONSUMER_OFFSETS)
        if topic is not None:
            self._take_up(await LOADING.run(partial(self._replayed, topic.partitions)))

    def of(self, group_id: str) -> RunningGroupShard:
        """Return the shard that coordinates the group.

        Raises NOT_COORDINATOR; COORDINATOR_LOAD_IN_PROGRESS while the shard moves to this node;
        COORDINATOR_NOT_AVAILABLE while a CreateTopics creates the topic.
        """
        partition = self.partition_of(group_id)
        shard = self._shards[partition]
        if shard is None:
            raise shard_missing(f"the group {group_id}", is_coming=self._is_coming(partition))
        return shard

    def known(self, group_id: str) -> RunningGroupShard | None:
        """Return the shard that coordinates the group, None where another node does."""
        return self._shards[self.partition_of(group_id)]

    def _is_coming(self, partition: int) -> bool:
        topic = self._topics.by_name(CONSUMER_OFFSETS)
        own_id = self._topics.placement.own_id
        return topic is not None and leader_id(topic.partitions[partition], own_id) == own_id

    def step(self, group_id: str) -> Step:
        """Begin a step on the group, now."""
        return Step(self.of(group_id), group_id, self._clock.steady_ms())

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        # Not before: a broker without groups has 50 partitions fewer to recover.
        if not self._shards:
            self._open()
        return partition_for(group_id, len(self._shards))

    def check_count(self, group_id: str, home: GroupShard) -> None:
        """Raise as `check_group_count` if there is no place for the group, which may be new.

        `home` is the state of the group's shard.
        """
        check_group_count(home, self._states, group_id, self._config.max_groups)

    @property
    def member_bytes(self) -> int:
        """What the members of all groups take in memory."""
        return sum(state.members.size_bytes for state in self._states)

    def check_metadata_room(self, step: Step, joining: JoinRequest) -> None:
        """Raise POLICY_VIOLATION if the metadata of a classic member has no room in memory."""
        group = step.state.groups.get(step.group_id)
        known_bytes = 0 if group is None else group.bytes_of(joining.member_id)
        member_id = joining.member_id or joining.new_member_id
        names = (member_id, joining.group_instance_id, joining.client_id)
        more_bytes = said_bytes(names, joining.protocols) - known_bytes
        self._check_room(step.group_id, more_bytes, ErrorCode.POLICY_VIOLATION)

    def check_assignment_room(self, step: Step, request: SyncRequest) -> None:
        """Raise POLICY_VIOLATION if what a classic group's leader assigns has no room in memory."""
        group = step.state.groups.get(step.group_id)
        if group is not None and assigns(group, request):
            # Until then a member keeps what it had in the generation before.
            known_bytes = sum(len(member.assignment) for member in group.members.values())
            more_bytes = sum(map(len, request.assignments.values())) - known_bytes
            self._check_room(step.group_id, more_bytes, ErrorCode.POLICY_VIOLATION)

    def check_growth(self, step: Step, drafted: ConsumerGroup, code: ErrorCode) -> None:
        """Raise `code` if a consumer group, as a request would make it, has no room in memory."""
        group_id = step.group_id
        # A classic group of that id would be replaced.
        group = step.state.consumer_groups.get(group_id) or step.state.groups.get(group_id)
        known_bytes = 0 if group is None else group.member_bytes
        self._check_room(group_id, drafted.member_bytes - known_bytes, code)

    def _check_room(self, group_id: str, more_bytes: int, code: ErrorCode) -> None:
        if more_bytes <= 0:
            return
        taken_bytes, bytes_max = self.member_bytes, self._config.queued_max_request_bytes
        if has_room(taken_bytes, more_bytes, bytes_max):
            # Logged again only once half of the room has been free in between.
            self._is_full_logged &= taken_bytes * 2 > bytes_max
            return
        if not self._is_full_logged:
            self._is_full_logged = True
            _log.error(
                "members are refused: those of all groups take too much memory",
                group_id=group_id,
                taken_bytes=taken_bytes,
                more_bytes=more_bytes,
                setting="queued.max.request.bytes",
            )
        raise no_room(code, taken_bytes, more_bytes, bytes_max)

    async def durable(self, group_ids: Collection[str]) -> None:
        """Return when all that the groups' shards hold at the moment of the call is durable."""
        # So many groups are probably in all shards, and finding the shard of each takes long.
        if len(group_ids) > _MANY:
            shards = self._shards
        else:
            partitions = {self.partition_of(group_id) for group_id in group_ids}
            shards = [self._shards[partition] for partition in partitions]
        # All ends before the first wait: later appends are no part of what was read. Shards of
        # other nodes are left out, since nothing was read from them.
        ends = [(shard, shard.log.log_end_offset) for shard in shards if shard is not None]
        for shard, end_offset in ends:
            await shard.durable(end_offset)

    def append_marker(
        self, partition: int, marker: TransactionMarker, now_ms: int
    ) -> tuple[PartitionLog, int]:
        """Append a marker to a partition of `__consumer_offsets`; return log and end to await.

        Pending acks are resolved in the same step. Raises UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, NOT_LEADER_OR_FOLLOWER.
        """
        # A marker may be the first use of a topic that a client has made.
        if not self._shards and self._topics.by_name(CONSUMER_OFFSETS) is not None:
            self._open()
        if not 0 <= partition < len(self._shards):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{CONSUMER_OFFSETS} has {len(self._shards)} partitions, none is {partition}",
            )
        shard = self._shards[partition]
        if shard is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"another node leads {CONSUMER_OFFSETS}-{partition}",
            )
        return shard.append_marker(marker, now_ms)

    def _open(self) -> None:
        self._take_up(self._replayed(self._topics.ensure_internal(CONSUMER_OFFSETS).partitions))

    def _replayed(self, partitions: Sequence[Partition]) -> list[RunningGroupShard | None]:
        """Return the shards of all partitions, replayed. Blocks, and may run in a thread."""
        shards: list[RunningGroupShard | None] = []
        for log in partitions:
            shard = None
            if not isinstance(log, Elsewhere):
                shard = RunningGroupShard(log, GroupShard(self._limits), RECORD_FORMAT)
                shard.replay()
            shards.append(shard)
        return shards

    def _take_up(self, shards: Iterable[RunningGroupShard | None]) -> None:
        assert not self._shards, "they were opened while a start replayed them"
        now_ms = self._clock.steady_ms()
        for shard in shards:
            self._shards.append(shard)
            if shard is not None:
                self._resume(shard, now_ms)

    def _resume(self, shard: RunningGroupShard, now_ms: int) -> None:
        # After the replay: a session must not end for the time that the broker was down.
        shard.state.resume(now_ms)
        self._states.append(shard.state)
        self._on_replayed(shard, now_ms)

    # --- shards that come and go

    async def load(self, log: PartitionLog) -> Callable[[], None]:
        """As `magnetar.storage.led_partitions.Coordinator`."""
        shard = RunningGroupShard(log, GroupShard(self._limits), RECORD_FORMAT)
        await LOADING.run(shard.replay)
        return partial(self._begin, shard)

    def _begin(self, shard: RunningGroupShard) -> None:
        # Otherwise `_open` replays this shard with the others, when one is first needed.
        if self._shards:
            self._shards[shard.log.partition] = shard
            self._resume(shard, self._clock.steady_ms())

    def unload(self, partition: int) -> None:
        """As `magnetar.storage.led_partitions.Coordinator`."""
        shard = self._shards[partition] if self._shards else None
        if shard is not None:
            self._shards[partition] = None
            self._states.remove(shard.state)
            self._on_unloaded(shard)
