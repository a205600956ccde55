"""Who leads which partition of a cluster: the rules, and the statements that write them down.

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
from itertools import islice
from math import ceil
from types import MappingProxyType
from typing import NamedTuple, TypeAlias
from uuid import UUID

from magnetar.storage.catalog_rows import next_epoch, replicas_of
from magnetar.storage.database import Queries
from magnetar.storage.replicas import Replicas, heir

#: Partitions that are handed over in one transaction: their clients wait for it.
STEP_PARTITIONS = 64
#: Of the coordinators' topics fewer: the next leader reads each from its beginning.
STEP_SHARDS = 4
#: And none after so many bytes of them, which are read in about 15 ms.
STEP_BYTES = 512 << 10
#: But no more steps than so many for either reason: each waits for the catalog, and for all nodes.
STEPS_OF_SHARDS_MAX = 32


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
    """Return where the partitions of one node go, of which `node_ids` take them."""
    return [Move(*one, heir(*one, node_ids, assigned.get(one, ()))) for one in led]


def misplaced(own_id: int, assigned: Assigned, live: Collection[int]) -> list[Move]:
    """Return what this node has to hand over, of what it leads and has these replicas.

    An assigned partition belongs to the first of its replicas that lives. Where none lives it stays
    where it is.
    """
    return [
        Move(*one, first)
        for one, replicas in assigned.items()
        if (first := next((each for each in replicas if each in live), own_id)) != own_id
    ]


def excess(
    own_id: int, led: Iterable[Led], counts: Mapping[int, int], live: Collection[int]
) -> list[Move]:
    """Return what a node hands over so that every live node leads about as much.

    `led` is what it leads, `counts` how much each node leads. Empty where the node leads no more
    than its share. Only nodes below their share take any, so all are even after a few looks.
    """
    share, rest = divmod(sum(counts.get(node_id, 0) for node_id in live), len(live))
    # One more each for those that have the most: they need not give it away.
    most_first = sorted(live, key=lambda node_id: (-counts.get(node_id, 0), node_id))
    room = {
        node_id: share + (place < rest) - counts.get(node_id, 0)
        for place, node_id in enumerate(most_first)
    }
    moves: list[Move] = []
    for one in islice(led, max(-room[own_id], 0)):
        most = max(room.values())
        # By weight where there is a choice: two that give do not fill the same node first.
        node_id = heir(*one, [each for each, left in room.items() if left == most])
        moves.append(Move(*one, node_id))
        room[node_id] -= 1
    return moves


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


def take_over(database: Queries, node_id: int, incarnation: int) -> bool:
    """Fence a node whose lease has ended, and give what it leads to live nodes.

    `incarnation` is the one that was seen dead. False: it has a lease, or another node was faster,
    or no other node lives; then nothing has changed but the counter of epochs.
    """
    live = [each for each in _live(database) if each != node_id]
    if not live:
        return False
    epoch = next_epoch(database)
    # First the row: what the old leader is committing at this moment comes before, or never.
    fenced = database.execute(
        "UPDATE nodes SET incarnation = ?"
        " WHERE node_id = ? AND incarnation = ? AND NOT is_leased(lease_until)",
        (epoch, node_id, incarnation),
    )
    if not fenced.rowcount:
        return False
    led, assigned = _led_by(database, node_id), _assigned_of(database, node_id)
    _move(database, node_id, inheritance(led, live, assigned), epoch)
    return True


def hand_over(database: Queries, node_id: int, incarnation: int, moves: Sequence[Move]) -> bool:
    """Let other nodes lead what this node leads, as far as these live.

    False: the node is fenced, and leads nothing; nothing has changed. Expects that all of these
    partitions are durable, and that this node appends nothing to them.
    """
    held = database.execute(
        "UPDATE nodes SET incarnation = incarnation WHERE node_id = ? AND incarnation = ?",
        (node_id, incarnation),
    )
    if not held.rowcount:
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
    rows = database.execute(
        "SELECT topic_id, partition FROM partition_leaders WHERE node_id = ?"
        " ORDER BY topic_id, partition",
        (node_id,),
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
    """Write down who leads these partitions, which `node_id` leads until now, and tell the nodes.

    A partition that another node leads is left as it is.
    """
    database.executemany(
        "UPDATE partition_leaders SET node_id = ?, leader_epoch = ?"
        " WHERE topic_id = ? AND partition = ? AND node_id = ?",
        [(move.node_id, epoch, move.topic_id.bytes, move.partition, node_id) for move in moves],
    )
    # With the version that the catalog gets when this transaction ends.
    database.executemany(
        "INSERT INTO changes (version, kind, name)"
        " SELECT change_count + 1, 'topic', ? FROM cluster",
        [(topic_id.hex,) for topic_id in dict.fromkeys(move.topic_id for move in moves)],
    )
