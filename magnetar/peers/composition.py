"""What a node among others has: its peers, what it asks of them, and what they ask of it."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.transactions.coordinator_fences import CoordinatorFences
from coordinator.transactions.metadata import TopicPartition
from coordinator.transactions.remembered_holds import RememberedHolds
from logstore.remote.commit_store import Bases
from magnetar.clock import Clock
from magnetar.peers.node_peers import NodePeers
from magnetar.peers.tables import PeerApi, PeerApis
from magnetar.runtime import holds_elsewhere, marker_messages
from magnetar.runtime.holds_elsewhere import HoldsElsewhere
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.nodes import Nodes
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.peer_messages import (
    CatalogChangedRequest,
    FindProducersRequest,
    HoldsToldRequest,
)
from magnetar.runtime.peer_requests import PeerRequests
from magnetar.runtime.producers_elsewhere import ProducersElsewhere
from magnetar.runtime.transactions import Transactions
from magnetar.runtime.turns import Turns
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.topic import Topic
from magnetar.storage.topic_names import TRANSACTION_STATE
from magnetar.storage.topics import Topics
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from wire.messages.write_txn_markers import WriteTxnMarkersRequest


class AmongPeers:
    """The parts of a node that ask other nodes, or answer them."""

    def __init__(
        self,
        peers: NodePeers,
        nodes: Nodes,
        topics: Topics,
        held: RememberedHolds,
        participants: LocalParticipants,
        clock: Clock,
        turns: Turns,
        bases: Bases | None,
    ) -> None:
        """`held` is what `participants` tells of each marker."""
        self._bases = bases
        self._peers = peers
        self._nodes = nodes
        self._participants = participants
        self._clock = clock
        self._turns = turns
        self.holds = HoldsElsewhere(nodes, peers, held, bases)
        self.told = HoldsTold(nodes, peers, moves=topics.placement.moves)
        self.markers = MarkersElsewhere(nodes, peers, participants, clock, bases)
        self.producers = ProducersElsewhere(peers, lambda: _coordinators(topics))

        def forget(topic: str, index: int) -> None:
            held.forget_partition(TopicPartition(topic, index))

        def forget_topic(topic: Topic) -> None:
            for log in topic.local:
                forget(topic.name, log.partition)

        topics.deletion.on_deleted.append(forget_topic)
        if topics.placement.moves:
            participants.fences = CoordinatorFences()
            topics.led.on_moved.append(forget)

    async def serve(
        self, transactions: Transactions, fail: Callable[[BaseException], None]
    ) -> None:
        """Answer peers from now on: once every shard is replayed. Raises OSError."""
        requests = PeerRequests(
            transactions,
            self._participants,
            self._clock,
            self._turns,
            self._nodes.see_changes,
            self._bases,
        )
        await self._peers.listen(_apis(requests, self.holds), fail)

    def stop(self) -> None:
        """Ask and answer no more."""
        self.holds.cancel()
        self.markers.cancel()
        self._peers.close()


def _coordinators(topics: Topics) -> list[int | None]:
    """Return the node of each partition of `__transaction_state`; None for those loaded here."""
    topic = topics.by_name(TRANSACTION_STATE)
    if topic is None:
        return []
    return [one.node_id if isinstance(one, Elsewhere) else None for one in topic.partitions]


def _apis(requests: PeerRequests, holds: HoldsElsewhere) -> PeerApis:
    """Return what peers may ask."""
    return {
        api.request_class.api_key: api
        for api in (
            PeerApi(CatalogChangedRequest, 0, requests.catalog_changed),
            PeerApi(FindProducersRequest, 0, requests.find_producers),
            PeerApi(HoldsToldRequest, 0, holds.told),
            PeerApi(AddPartitionsToTxnRequest, holds_elsewhere.VERSION, requests.add_partitions),
            PeerApi(WriteTxnMarkersRequest, marker_messages.VERSION, requests.write_markers),
        )
    }
