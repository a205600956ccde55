"""Who leads which partition of a cluster: the rules, and the statements that write them down.

In a cluster partitions change their leader while nodes run. There are two ways. A node whose lease
has ended is *fenced*, and live nodes take over what it led. A live node *hands over* what it leads:
all of it when it stops, its excess when a node has joined.

Every partition that moves gets a leader epoch that no partition had before: the next number of the
one counter that numbers starts too. Either way is one transaction of the catalog, which holds the
row of the node that leads until then. A commit of that node holds the same row, so each commit of a
former leader is before the move, or has no effect.

Rendezvous hashing chooses who takes a partition: every node computes the same, a dead node's
partitions are spread over all others, and no other partition moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol
from uuid import UUID

#: Partitions that are handed over in one transaction: their clients wait for it.
STEP_PARTITIONS = 64


class Led(NamedTuple):
    """One partition of a topic."""

    topic_id: UUID
    partition: int


class Move(NamedTuple):
    """A partition, and the node that is to lead it."""

    topic_id: UUID
    partition: int
    node_id: int


class Statements(Protocol):
    """What runs statements in an open transaction of the catalog."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...


# --- the rules


def heir(led: Led, node_ids: Iterable[int]) -> int:
    """Return the node that takes a partition: the one of the highest rendezvous weight."""
    key = led.topic_id.bytes + led.partition.to_bytes(4, "big")
    # Both in the comparison: a node id decides between equal weights.
    return max(node_ids, key=lambda node_id: (_weight(key, node_id), node_id))


def _weight(key: bytes, node_id: int) -> bytes:
    return blake2b(key + node_id.to_bytes(4, "big"), digest_size=8).digest()


def inheritance(led: Iterable[Led], node_ids: Collection[int]) -> list[Move]:
    """Return where the partitions of one node go, of which `node_ids` take them."""
    return [Move(*one, heir(one, node_ids)) for one in led]


def excess(
    own_id: int, led: Iterable[Led], counts: Mapping[int, int], live: Collection[int]
) -> list[Move]:
    """Return what a node hands over so that every live node leads about as much.

    `led` is what it leads, `counts` how much each node leads. Empty where the node leads no more
    than its share, rounded up. Only nodes below their share take any, so nothing moves twice.
    """
    everything = sum(counts.get(node_id, 0) for node_id in live)
    share, rest = divmod(everything, len(live))
    surplus = counts.get(own_id, 0) - share - bool(rest)
    room = Counter({one: share - counts.get(one, 0) for one in live if counts.get(one, 0) < share})
    moves: list[Move] = []
    # By weight, so that two nodes with a surplus do not both fill the same node first.
    for one in led:
        if len(moves) >= surplus or not room:
            break
        node_id = heir(one, room)
        moves.append(Move(*one, node_id))
        room[node_id] -= 1
        if not room[node_id]:
            del room[node_id]
    return moves


def in_steps(moves: Iterable[Move], shards_of: Collection[UUID]) -> Iterator[Sequence[Move]]:
    """Yield the moves in steps of `STEP_PARTITIONS`, those of the coordinators' topics first.

    `shards_of`: the ids of these topics. Groups and transactions stand still without a coordinator;
    a partition's clients only turn to another node.
    """
    in_order = sorted(moves, key=lambda move: move.topic_id not in shards_of)
    for begin in range(0, len(in_order), STEP_PARTITIONS):
        yield in_order[begin : begin + STEP_PARTITIONS]


# --- the statements


def take_over(database: Statements, node_id: int, incarnation: int, *, now: str) -> bool:
    """Fence a node whose lease has ended, and give what it leads to live nodes.

    `incarnation` is the one that was seen dead. `now`: SQL for the moment as `nodes.lease_until`
    has it. False: it has a lease, or another node was faster, or no other node lives; then nothing
    has changed but the counter of epochs.
    """
    live = [each for each in _live(database, now) if each != node_id]
    if not live:
        return False
    epoch = _next_epoch(database)
    # First the row: what the old leader is committing at this moment comes before, or never.
    fenced = database.execute(
        "UPDATE nodes SET incarnation = ?"  # noqa: S608  # `now` is no input
        f" WHERE node_id = ? AND incarnation = ? AND lease_until <= {now}",
        (epoch, node_id, incarnation),
    )
    if not fenced.rowcount:
        return False
    _move(database, node_id, inheritance(_led_by(database, node_id), live), epoch)
    return True


def hand_over(
    database: Statements, node_id: int, incarnation: int, moves: Sequence[Move], *, now: str
) -> bool:
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
    live = {*_live(database, now)}
    taken = [move for move in moves if move.node_id in live]
    if taken:
        _move(database, node_id, taken, _next_epoch(database))
    return True


def _live(database: Statements, now: str) -> list[int]:
    living = f"SELECT node_id FROM nodes WHERE lease_until > {now} ORDER BY 1"  # noqa: S608  # no input
    rows = database.execute(living)
    return [node_id for (node_id,) in rows.fetchall()]


def _led_by(database: Statements, node_id: int) -> list[Led]:
    rows = database.execute(
        "SELECT topic_id, partition FROM partition_leaders WHERE node_id = ?"
        " ORDER BY topic_id, partition",
        (node_id,),
    )
    return [Led(UUID(bytes=bytes(topic_id)), partition) for topic_id, partition in rows.fetchall()]


def _move(database: Statements, node_id: int, moves: Sequence[Move], epoch: int) -> None:
    """Write down who leads these partitions, which `node_id` leads until now, and tell the nodes.

    A partition that another node leads is left as it is.
    """
    database.executemany(
        "UPDATE partition_leaders SET node_id = ?, leader_epoch = ?"
        " WHERE topic_id = ? AND partition = ? AND node_id = ?",
        [(move.node_id, epoch, move.topic_id.bytes, move.partition, node_id) for move in moves],
    )
    # Of the version that the end of this transaction counts up to.
    database.executemany(
        "INSERT INTO changes (version, kind, name)"
        " SELECT change_count + 1, 'topic', ? FROM cluster",
        [(topic_id.hex,) for topic_id in dict.fromkeys(move.topic_id for move in moves)],
    )


def _next_epoch(database: Statements) -> int:
    row = database.execute(
        "UPDATE cluster SET broker_epoch = broker_epoch + 1 RETURNING broker_epoch"
    ).fetchone()
    return int(row[0])
