"""The leader of a partition: this node, which has the log, or another one.

A node is one process with an id; it alone leads the partitions that the catalog gives it. A broker
without workers is the only node: the catalog then names no leaders, and every partition is a log
here. Nodes of one machine lead the same partitions for as long as they run; in a cluster
partitions move (`leadership`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias
from uuid import UUID

from logstore.partition.log import PartitionLog
from magnetar.storage.replicas import Known, Replicas, heir
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Elsewhere(NamedTuple):
    """A partition that another node leads, as the catalog has it.

    A partition of this node is one too, as long as its log is not open.
    """

    node_id: int
    #: The number of that node's start, or of the move that gave it the partition; from 0.
    leader_epoch: int


#: One partition of a topic, as this node knows it.
Partition: TypeAlias = PartitionLog | Elsewhere


def local(partitions: Iterable[Partition]) -> list[PartitionLog]:
    """Return the logs that this node leads, in order."""
    return [one for one in partitions if not isinstance(one, Elsewhere)]


def leader_id(partition: Partition, own_id: int) -> int:
    """Return the node that leads the partition; `own_id` is this one's."""
    return partition.node_id if isinstance(partition, Elsewhere) else own_id


def shard_missing(what: str, *, is_coming: bool) -> KafkaError:
    """Return why this node does not coordinate `what`: another one does, or it does soon."""
    if is_coming:
        return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{what} is being loaded here")
    return KafkaError(ErrorCode.NOT_COORDINATOR, f"another node coordinates {what}")


class NotLeader(KafkaError):
    """NOT_LEADER_OR_FOLLOWER: another node leads the partition."""

    def __init__(self, topic: str, index: int, leader: Elsewhere) -> None:
        super().__init__(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {leader.node_id} leads {topic}-{index}"
        )
        self.leader = leader


class Placement:
    """Which nodes there are, and which of them leads a partition."""

    def __init__(self, own_id: int, node_ids: Sequence[int] = (), *, moves: bool = False) -> None:
        """`node_ids`: of all nodes; none where this is the only one. `moves`: whether partitions
        change their leaders while nodes run."""
        self.own_id = own_id
        self.moves = moves
        #: By node: what stands for a partition that it leads since its start.
        self._elsewhere: dict[int, Elsewhere] = {}
        self.node_ids = tuple(sorted(node_ids)) or (own_id,)
        self._known_ids = self.node_ids
        #: A node of a cluster never is: others may join while it runs.
        self.is_alone = not moves and self.node_ids == (own_id,)

    def of_new(
        self, topic_id: UUID, first: int, end: int, assigned: Sequence[Replicas] = ()
    ) -> tuple[Sequence[int], dict[int, Replicas]]:
        """Return the leaders of a topic's partitions from `first` to `end` (exclusive), and the
        replicas to be stored.

        No leaders where there is one node. Neighbours are led by different nodes, and the topic's
        id says which node begins, so small topics are spread too. `assigned`: the replicas that
        were asked for; none: there is no wish.
        """
        if self.is_alone:
            return (), {}
        ids, begin = self.node_ids, topic_id.int
        if not assigned:
            return [ids[(begin + index) % len(ids)] for index in range(first, end)], {}
        by_partition = dict(enumerate(assigned, first))
        leaders = [heir(topic_id, index, ids, each) for index, each in by_partition.items()]
        return leaders, by_partition if self.moves else {}

    @property
    def nodes(self) -> Known:
        """All nodes, for what clients are told."""
        return Known(self.node_ids, self._known_ids)

    @property
    def replicas_max(self) -> int | None:
        """How many replicas a partition can have; None: one, since all nodes share a disk."""
        return len(self._known_ids) if self.moves else None

    def see_nodes(self, live: Iterable[int], known: Iterable[int]) -> None:
        """Note which nodes of the cluster have a lease: new partitions are spread over them.

        `known`: those that ever started. This one is always among both: it would have ended if it
        had been fenced.
        """
        self.node_ids = tuple(sorted({*live, self.own_id}))
        self._known_ids = tuple(sorted({*known, *self.node_ids}))

    def see_epochs(self, epochs: Mapping[int, int]) -> dict[int, Elsewhere]:
        """Note the leader epochs of nodes, each the number of its last start.

        Returns what stands from now on for the partitions of each node whose epoch is new.
        """
        before = self._elsewhere
        self._elsewhere = {node_id: Elsewhere(node_id, epoch) for node_id, epoch in epochs.items()}
        return {key: one for key, one in self._elsewhere.items() if before.get(key) != one}

    def at(self, node_id: int) -> Elsewhere:
        """Return what stands for a partition of that node: one value for all of them."""
        return self._elsewhere.setdefault(node_id, Elsewhere(node_id, 0))

    def as_told(self, leader: Elsewhere) -> Elsewhere:
        """Return what stands for a partition of which the catalog says this.

        Where partitions do not move, all of a node have the epoch of its start.
        """
        return leader if self.moves else self.at(leader.node_id)

    def led_here(self, leaders: Sequence[Elsewhere], first: int, end: int) -> Iterable[int]:
        """Return which partitions from `first` to `end` (exclusive) this node leads.

        No leaders: all of them.
        """
        if not leaders:
            return range(first, end)
        return [index for index in range(first, end) if leaders[index].node_id == self.own_id]

    def joined(
        self,
        leaders: Sequence[Elsewhere],
        first: int,
        end: int,
        logs: Iterator[PartitionLog | None],
    ) -> list[Partition]:
        """Return the partitions from `first` to `end` (exclusive), of which `logs` are led here.

        None among these: the log is opened later.
        """
        if not leaders:
            return [_opened(log) for log in islice(logs, end - first)]
        own_id = self.own_id
        return [
            (next(logs) if leader.node_id == own_id else None) or self.as_told(leader)
            for leader in leaders[first:end]
        ]


def _opened(log: PartitionLog | None) -> PartitionLog:
    # Only a cluster's logs open later, and its partitions have leaders. A list that left one out
    # would give each after it another one's number.
    assert log is not None, "a node without others opens all of its logs"
    return log
