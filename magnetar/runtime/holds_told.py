"""What a coordinator tells the leaders of other nodes of its transactions, before they ask.

A client adds partitions by AddPartitionsToTxn, and sends their data when it has the answer (version
1; version 2 adds with the data). The leaders of these partitions would each ask whether the
transaction holds them (`holds_elsewhere`). A leader that was told need not ask. The coordinator
tells them once the add is durable, before the client has its answer.

A message that is lost does no harm: the leader asks. A late one would: if it came after the
transaction's marker, it would let in data of a transaction that has ended. So it goes over the one
connection of the markers, and a node hears nothing of an earlier connection once it has admitted a
later one (`magnetar.peers.listening`). Where coordinators move between nodes, two of them may have
such a connection to one leader, so nothing is told there.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from coordinator.transactions.metadata import TopicPartition
from coordinator.transactions.shard import Shard as Transactions
from magnetar.runtime.peer_messages import HeldTopic, HoldsToldRequest
from wire.message import Message

#: More partitions at once are not told: a peer's turn stays short.
_TOLD_MAX = 256


class Leaders(Protocol):
    """The leaders of partitions."""

    own_id: int

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node; None: there is no such partition, as far as this node has read."""
        ...


class Told(Protocol):
    """The other nodes, which may be told what they could also ask for."""

    def tell(self, node_id: int, request: Message, version: int) -> None:
        """Send it on the connection of the markers, if there is one. It may be lost."""
        ...


class Shard(Protocol):
    """The shard of a transaction's coordinator."""

    @property
    def state(self) -> Transactions:
        """What is known of each transactional id."""
        ...

    async def durable(self, end_offset: int) -> None:
        """Return when everything below `end_offset` is durable."""
        ...

    async def ordered(self, end_offset: int) -> None:
        """Return when everything below `end_offset` is ordered."""
        ...


class HoldsTold:
    """The way of adds to the leaders on other nodes."""

    def __init__(self, leaders: Leaders, peers: Told, *, moves: bool) -> None:
        """`moves`: whether partitions, and so coordinators, go from node to node."""
        self._leaders = leaders
        self._peers = peers
        self._moves = moves

    async def added(
        self,
        shard: Shard,
        transactional_id: str,
        partitions: Set[TopicPartition],
        end_offset: int,
    ) -> None:
        """Return when data for an add may come. Call it in the step that appended the add.

        If another node leads one of the partitions, the add is durable then: data there would wait
        for that anyway. Where coordinators move, the add is ordered then, and nothing is told: the
        next coordinator knows only what is ordered, and would refuse the data. No crash leaves the
        data without the add (`magnetar.runtime.bases`), and data is acknowledged after both.
        """
        if self._moves:
            await shard.ordered(end_offset)
            return
        by_node = self._by_node(partitions)
        if not by_node:
            return
        txn = shard.state.get(transactional_id)
        assert txn is not None, "it was added to"
        await shard.durable(end_offset)
        # It may have ended meanwhile, or grown: what is told is true in this step.
        if len(partitions) > _TOLD_MAX or shard.state.get(transactional_id) is not txn:
            return
        for node_id, topics in by_node.items():
            told = HoldsToldRequest(
                transactional_id=transactional_id,
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                topics=[HeldTopic(name=name, partitions=some) for name, some in topics.items()],
            )
            self._peers.tell(node_id, told, 0)

    def _by_node(self, partitions: Set[TopicPartition]) -> dict[int, dict[str, list[int]]]:
        """Return which of them other nodes lead: for each node the partitions by topic."""
        own_id, leader_of = self._leaders.own_id, self._leaders.leader_of
        found: dict[int, dict[str, list[int]]] = {}
        for topic, index in partitions:
            node_id = leader_of(topic, index)
            if node_id is not None and node_id != own_id:
                found.setdefault(node_id, {}).setdefault(topic, []).append(index)
        return found
