"""Finds the transaction of a producer id that another node coordinates. Healing asks for it.

The nodes that lead partitions of `__transaction_state` are asked. Each answers what is durable
there, and which shards it has loaded. A producer id is unknown to every coordinator only if every
shard was among these. Otherwise a node that does not answer may know it, or a node whose answer
this version cannot read, or a shard that is moving at this moment. The data was there before the
first question, so it does not matter when each shard was asked, nor where it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from coordinator.transactions.metadata import State, TransactionMetadata
from coordinator.transactions.records import decode_record
from magnetar.logging import get_logger
from magnetar.runtime.peer_messages import (
    FindProducersRequest,
    FindProducersResponse,
    FoundProducer,
)
from magnetar.runtime.peers import ITEMS_PER_CALL_MAX, Peers, PeerUnreachable
from wire.errors import WireError

_log = get_logger("transactions")


class Coordinated(NamedTuple):
    """A transactional id that another node coordinates, as it was when that node answered."""

    txn: TransactionMetadata
    coordinator_epoch: int


class Answers(NamedTuple):
    """What all coordinators know of some producer ids."""

    found: dict[int, Coordinated]
    is_complete: bool
    """Whether every shard was asked, so that no coordinator knows an id that was not found."""
    asked: Collection[int] | None = None
    """The producer ids that were asked about; None: this node is the only one."""

    def are_all_asked(self, producer_id: int) -> bool:
        """Return whether all shards were asked about a producer id."""
        return self.is_complete and (self.asked is None or producer_id in self.asked)


NO_ANSWERS = Answers({}, is_complete=False)


class ProducersElsewhere:
    """The other coordinators, asked by producer id."""

    def __init__(self, peers: Peers, shards: Callable[[], Sequence[int | None]]) -> None:
        """`shards` returns, for each partition of `__transaction_state`, the node that leads it;
        None for those that are loaded here."""
        self._peers = peers
        self._shards = shards

    async def find(self, producer_ids: Sequence[int]) -> Answers:
        """Ask every other coordinator about some producer ids.

        Call in the step in which the shards of this node did not know them.
        """
        found: dict[int, Coordinated] = {}
        leaders = self._shards()
        missing = {shard for shard, leader in enumerate(leaders) if leader is not None}
        for node_id in sorted({leader for leader in leaders if leader is not None}):
            loaded: list[set[int]] = []
            starts = range(0, len(producer_ids), ITEMS_PER_CALL_MAX)
            for start in starts:
                some = [*producer_ids[start : start + ITEMS_PER_CALL_MAX]]
                request = FindProducersRequest(producer_ids=some)
                try:
                    response = await self._peers.call(node_id, request, 0)
                    assert isinstance(response, FindProducersResponse)
                    found |= _coordinated(response.producers)
                except PeerUnreachable:
                    break
                except WireError as unreadable:
                    _log.warning(
                        "open transactions wait: what a node says of them cannot be read. It may be"
                        " of a later version",
                        node_id=node_id,
                        reason=str(unreadable),
                    )
                    break
                loaded.append({*response.shards})
            if len(loaded) == len(starts):
                # Only shards that were loaded at each question: one may have come in between.
                missing -= loaded[0].intersection(*loaded)
        return Answers(found, not missing, frozenset(producer_ids))


def _coordinated(producers: Sequence[FoundProducer]) -> dict[int, Coordinated]:
    """Return what a peer coordinates, by producer id. Raises WireError where it cannot be read."""
    found = {}
    for one in producers:
        txn = decode_record(one.key, one.value)
        if txn is None or txn.state is State.DEAD:
            raise WireError(f"a record of producer {one.producer_id} is of an unknown kind")
        found[one.producer_id] = Coordinated(txn, one.coordinator_epoch)
    return found
