"""Which node leads a partition of a cluster: the rules, and the statements that write it down.

In a cluster partitions change their leader while nodes run. There are two ways. A node whose lease
has ended is *fenced*, and live nodes take over what it led. A live node *hands over* what it leads:
all of it when it stops, its excess when a node has joined.

Every partition that moves gets a leader epoch that no partition had before: the next number of the
one counter that numbers starts too. Either way is one transaction of the catalog, which holds the
row of the node that leads until then. A commit of that node holds the same row, so each commit of a
former leader is before the move, or has no effect.

The first replica that lives takes a partition, where replicas are assigned. For all others
rendezvous hashing chooses: every node computes the same, a dead node's partitions are spread over
all others, and no other partition moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from uuid import UUID

from magnetar.storage.catalog_rows import next_epoch, replicas_of, value_rows
from magnetar.storage.database import Queries
from magnetar.storage.replicas import Replicas, heir

#: Partitions that are handed over in one transaction: their clients wait for it.
STEP_PARTITIONS = 64
#: Fewer of the coordinators' topics: the next leader reads each partition from its beginning.
STEP_SHARDS = 4
#: A step ends once its logs of coordinators have so many bytes, which are read in about 15 ms.
STEP_BYTES = 512 << 10
#: Both numbers rise where more steps would be needed: a step waits for the catalog and all nodes.
STEPS_OF_SHARDS_MAX = 32
#: Partitions that are taken over in one transaction, which locks the catalog and has two seconds.
TAKEN_TOGETHER = 2_048
#: A node that leads so many more than another one gives some away.
_UNEVEN = 2


class Led(NamedTuple):
    """One partition of a topic."""

    topic_id: UUID
    partition: int


class Move(NamedTuple):
    """A partition, and the node that is to lead it."""

    topic_id: UUID
    partition: int
    node_id: int


# --- the rules


#: The replicas of partitions that have assigned ones.
Assigned: TypeAlias = Mapping[Led, Replicas]


def inheritance(
    led: Iterable[Led], node_ids: Collection[int], assigned: Assigned = MappingProxyType({})
) -> list[Move]:
    """Return the moves by which the nodes `node_ids` take over the partitions of one node."""
    return [Move(*one, heir(*one, node_ids, assigned.get(one, ()))) for one in led]


def misplaced(own_id: int, assigned: Assigned, live: Collection[int]) -> list[Move]:
    """Return what this node has to hand over of the partitions in `assigned`, which it leads.

    An assigned partition belongs to the first of its replicas that lives. Where none lives it stays
    where it is.
    """
    return [
        Move(*one, first)
        for one, replicas in assigned.items()
        if (first := next((each for each in replicas if each in live), own_id)) != own_id
    ]


class TopicLeaders(NamedTuple):
    """The leaders of a topic's partitions."""

    topic_id: UUID
    node_ids: Sequence[int]
    """The leader of each partition, in their order."""
    held: Collection[int] = ()
    """The partitions that stay where they are: an administrator has assigned them."""


def evened(topics: Iterable[TopicLeaders], live: Collection[int]) -> list[Move]:
    """Return what the nodes hand over so that all live ones lead about as much.

    Each topic is evened out first, so that its clients find all nodes at work, whatever other
    topics there are. Then all topics together, as far as no topic becomes less even. At the end no
    node leads two partitions more than another, of a topic or of all, except for what is held.
    Every node computes the same moves from the same leaders, and makes those of its own partitions.
    So the moves of all nodes fit together.
    """
    spread = [_Spread(topic, live) for topic in topics]
    led = {node_id: sum(one.led[node_id] for one in spread) for node_id in live}
    # Every topic before all together: what is moved for the sake of one may be enough for all.
    for one in spread:
        one.even_out(led, more_min=_UNEVEN)
    # Each round leaves less to be done: a topic may have had its turn before others changed what
    # the nodes lead.
    while max(led.values()) - min(led.values()) >= _UNEVEN:
        if not any([one.even_out(led, more_min=1) for one in spread]):
            break  # What is held keeps them uneven.
    return [move for one in spread for move in one.moves()]


class _Spread:
    """The partitions of a topic, as they move from node to node in a plan."""

    def __init__(self, topic: TopicLeaders, live: Collection[int]) -> None:
        self._topic = topic
        #: How many partitions each live node leads.
        self.led = dict.fromkeys(live, 0)
        #: By live node: which of these may move, the next one last.
        self._movable: dict[int, list[int]] = {node_id: [] for node_id in live}
        for partition, node_id in enumerate(topic.node_ids):
            if node_id in self._movable:
                self.led[node_id] += 1
                if partition not in topic.held:
                    self._movable[node_id].append(partition)

    def even_out(self, of_all: dict[int, int], *, more_min: int) -> bool:
        """Move partitions until the topic is even. Return whether anything moved.

        `of_all` counts the partitions of all topics that each node leads. With `more_min` 1 these
        counts are evened out too, by moves that leave the topic as even as it is.
        """
        led, has_moved = self.led, False

        def load(node_id: int) -> tuple[int, int, int]:
            return led[node_id], of_all[node_id], node_id

        while givers := [node_id for node_id, movable in self._movable.items() if movable]:
            most, least = max(givers, key=load), min(led, key=load)
            more = led[most] - led[least]
            if more < more_min or (more == 1 and of_all[most] - of_all[least] < _UNEVEN):
                break
            self._movable[least].append(self._movable[most].pop())
            for counts in (led, of_all):
                counts[most] -= 1
                counts[least] += 1
            has_moved = True
        return has_moved

    def moves(self) -> list[Move]:
        """Return the partitions that another node has at the end."""
        topic_id, before = self._topic.topic_id, self._topic.node_ids
        return [
            Move(topic_id, partition, node_id)
            for node_id, movable in self._movable.items()
            for partition in movable
            if before[partition] != node_id
        ]


def in_steps(moves: Iterable[Move], shards: Mapping[Led, int]) -> Iterator[Sequence[Move]]:
    """Yield the moves in steps: those of the coordinators' topics first, then all others.

    `shards`: the bytes of the log of each partition of a coordinator's topic. Groups and
    transactions stand still without a coordinator; a partition's clients only turn to another node.
    """
    coordinators: list[Move] = []
    others: list[Move] = []
    for move in moves:
        (coordinators if Led(*move[:2]) in shards else others).append(move)
    yield from _steps_of_shards([(move, shards[Led(*move[:2])]) for move in coordinators])
    for begin in range(0, len(others), STEP_PARTITIONS):
        yield others[begin : begin + STEP_PARTITIONS]


def _steps_of_shards(moves: Sequence[tuple[Move, int]]) -> Iterator[Sequence[Move]]:
    """Yield the moves of coordinators' shards in steps, given the bytes of each."""
    shards_max = max(STEP_SHARDS, ceil(len(moves) / STEPS_OF_SHARDS_MAX))
    bytes_max = max(STEP_BYTES, ceil(sum(size for _, size in moves) / STEPS_OF_SHARDS_MAX))
    step: list[Move] = []
    step_bytes = 0
    for move, size_bytes in moves:
        step.append(move)
        step_bytes += size_bytes
        if len(step) >= shards_max or step_bytes >= bytes_max:
            yield step
            step, step_bytes = [], 0
    if step:
        yield step


# --- the statements


class NotTaken(Exception):
    """A node is not taken over: it has a lease, or another node was faster, or no other node lives.

    Give up the transaction: if it is committed, every node reads the catalog again for nothing.
    """


def take_over(database: Queries, node_id: int, incarnation: int) -> int:
    """Fence a node whose lease has ended, and give `TAKEN_TOGETHER` partitions that it leads to
    live nodes, those of coordinators first.

    `incarnation` is the one that was seen dead. Returns the next one, which never lives: it leads
    the rest, and is to be taken over in its turn. Raises NotTaken.
    """
    live = [each for each in _live(database) if each != node_id]
    if not live:
        raise NotTaken
    epoch = next_epoch(database)
    # First the row: what the old leader is committing at this moment comes before, or never.
    fenced = database.execute(
        "UPDATE nodes SET incarnation = ?"
        " WHERE node_id = ? AND incarnation = ? AND NOT is_leased(lease_until)",
        (epoch, node_id, incarnation),
    )
    if not fenced.rowcount:
        raise NotTaken
    led, assigned = _led_by(database, node_id), _assigned_of(database, node_id)
    _move(database, node_id, inheritance(led, live, assigned), epoch)
    return epoch


def hand_over(database: Queries, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
    """Let other nodes lead what this node leads, as far as these live.

    False: the node is fenced, and leads nothing; nothing has changed. Expects that all of these
    partitions are durable, and that this node appends nothing to them.
    """
    # Without a lock on the row: it would last as long as this transaction waits for a standby, and
    # keep the node's commits out, which renew its lease. No other transaction changes incarnations
    # meanwhile.
    held = database.execute(
        "SELECT 1 FROM nodes WHERE node_id = ? AND incarnation = ?", (node_id, incarnation)
    )
    if held.fetchone() is None:
        return False
    live = {*_live(database)}
    taken = [move for move in moves if move.node_id in live]
    if taken:
        _move(database, node_id, taken, next_epoch(database))
    return True


def _live(database: Queries) -> list[int]:
    """Return the nodes that may be given something: a node that is about to stop is not."""
    rows = database.execute(
        "SELECT node_id FROM nodes WHERE is_leased(lease_until) AND is_leaving = 0 ORDER BY node_id"
    )
    return [node_id for (node_id,) in rows.fetchall()]


def _led_by(database: Queries, node_id: int) -> list[Led]:
    """Return what a node leads, as much as is taken over at once."""
    rows = database.execute(
        "SELECT topic_id, partition FROM partition_leaders JOIN topics ON id = topic_id"
        " WHERE node_id = ? ORDER BY internal DESC, topic_id, partition LIMIT ?",
        (node_id, TAKEN_TOGETHER),
    )
    return [Led(UUID(bytes=bytes(topic_id)), partition) for topic_id, partition in rows.fetchall()]


def _assigned_of(database: Queries, node_id: int) -> dict[Led, Replicas]:
    """Return the assigned replicas of what a node leads."""
    rows = database.execute(
        "SELECT topic_id, partition, node_ids FROM assigned_replicas"
        " JOIN partition_leaders USING (topic_id, partition) WHERE node_id = ?",
        (node_id,),
    )
    return {
        Led(UUID(bytes=bytes(topic_id)), partition): replicas_of(node_ids)
        for topic_id, partition, node_ids in rows.fetchall()
    }


def _move(database: Queries, node_id: int, moves: Sequence[Move], epoch: int) -> None:
    """Write down the new leaders of partitions that `node_id` leads until now; tell the nodes.

    A partition that another node leads is left as it is.
    """
    by_heir: dict[int, list[object]] = {}
    for move in moves:
        by_heir.setdefault(move.node_id, []).extend((move.topic_id.bytes, move.partition))
    # A statement for each partition would keep the catalog locked five times as long.
    for heir_id, led in by_heir.items():
        database.execute(
            "UPDATE partition_leaders SET node_id = ?, leader_epoch = ? WHERE node_id = ?"  # noqa: S608  # marks
            f" AND (topic_id, partition) IN (VALUES {value_rows(2, len(led) // 2)})",
            (heir_id, epoch, node_id, *led),
        )
    # With the version that the catalog gets when this transaction ends.
    names = [topic_id.hex for topic_id in dict.fromkeys(move.topic_id for move in moves)]
    database.execute(
        "INSERT INTO changes (version, kind, name)"  # noqa: S608  # marks
        " SELECT change_count + 1, 'topic', column1"
        f" FROM cluster, (VALUES {value_rows(1, len(names))}) AS moved",
        names,
    )
