"""Whose transaction a partition of this node holds open, where another node coordinates it.

Healing looks transactions up by the producer id of their data. The nodes that lead partitions of
`__transaction_state` are asked; each answers what is durable there. Only when all of them have
answered is a producer id unknown to every coordinator: one that does not answer may know it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from coordinator.transactions.metadata import TransactionMetadata
from coordinator.transactions.records import decode_record
from magnetar.runtime.peer_messages import FindProducersRequest, FindProducersResponse
from magnetar.runtime.peers import ITEMS_PER_CALL_MAX, Peers, PeerUnreachable


class Coordinated(NamedTuple):
    """What another node coordinates, as it was when that node answered."""

    txn: TransactionMetadata
    coordinator_epoch: int


class Answers(NamedTuple):
    """What all coordinators know of some producer ids."""

    found: dict[int, Coordinated]
    is_complete: bool
    """Whether all have answered, so that what is not found is unknown to all."""


NO_ANSWERS = Answers({}, is_complete=False)


class ProducersElsewhere:
    """The other coordinators, asked by producer id."""

    def __init__(self, peers: Peers, coordinators: Callable[[], Collection[int]]) -> None:
        """`coordinators` returns the other nodes that lead partitions of `__transaction_state`."""
        self._peers = peers
        self._coordinators = coordinators

    async def find(self, producer_ids: Sequence[int]) -> Answers:
        """Ask every other coordinator about some producer ids."""
        found: dict[int, Coordinated] = {}
        is_complete = True
        for node_id in self._coordinators():
            for start in range(0, len(producer_ids), ITEMS_PER_CALL_MAX):
                some = [*producer_ids[start : start + ITEMS_PER_CALL_MAX]]
                request = FindProducersRequest(producer_ids=some)
                try:
                    response = await self._peers.call(node_id, request, 0)
                except PeerUnreachable:
                    is_complete = False
                    break
                assert isinstance(response, FindProducersResponse)
                for one in response.producers:
                    txn = decode_record(one.key, one.value)
                    assert txn is not None, "a peer sends records that it has decoded itself"
                    found[one.producer_id] = Coordinated(txn, one.coordinator_epoch)
        return Answers(found, is_complete)
