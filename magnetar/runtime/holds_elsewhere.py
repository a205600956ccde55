"""Data of transactions whose coordinator is another node, which is asked before the first batch.

A partition accepts transactional data only if the producer's transaction holds the partition
(KIP-890: op before data). AddPartitionsToTxn asks the coordinator on the other node to add the
partition (transaction version 2), or to verify that it was added (version 1). The coordinator
answers when that is ordered, and the data rests on the answer (`magnetar.runtime.bases`), so no
data is durable without its add. The answer is remembered until the marker of the transaction
(`coordinator.transactions.remembered_holds`). The step that appends looks at it again, and the
partition checks the producer's epoch in that step too.

The answer to a verification names all partitions of the transaction, unless they are many. So a
client that sends each partition's batch by itself costs one question
(docs/decisions/0053-cost-of-nodes.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from typing import NamedTuple, Protocol

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from coordinator.transactions.remembered_holds import RememberedHolds
from logstore.remote.commit_store import Bases
from magnetar.runtime.bases import rest_on_basis
from magnetar.runtime.peer_messages import HoldsToldRequest
from magnetar.runtime.peers import Peers, PeerUnreachable, SharedCalls
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

#: The version of AddPartitionsToTxn that nodes speak.
VERSION = 5
#: How often a coordinator is asked if markers arrive before its answers and make them void.
_QUESTIONS_MAX = 3

#: The answers of a coordinator that has just moved, or is starting: the client is to ask again.
_NOT_NOW = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class Coordinators(Protocol):
    """Which node coordinates a transactional id, and which leads a partition."""

    own_id: int

    def node_of(self, transactional_id: str) -> int:
        """Return the node of the id's coordinator."""
        ...

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node that leads a partition; None: there is no such partition."""
        ...


class HoldQuery(NamedTuple):
    """One transaction's partitions, to be added or verified."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Collection[TopicPartition]
    adds: bool


class MustAsk(Exception):
    """Raised where another node coordinates the transaction: append the data after `wait`."""

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.wait = wait


#: The error codes by number: a look-up is faster than a call. A code that only a later version
#: knows counts as UNKNOWN_SERVER_ERROR, as with Kafka's clients.
_CODES = {code.value: code for code in ErrorCode}

#: A code for each partition.
Codes = dict[TopicPartition, ErrorCode]


class HoldsElsewhere:
    """Asks other coordinators before this node appends data of their transactions."""

    def __init__(
        self, coordinators: Coordinators, peers: Peers, held: RememberedHolds, bases: Bases | None
    ) -> None:
        """`held` is told of every marker that this node appends. `bases`: the commits of other
        nodes that this node's data rests on."""
        self._coordinators = coordinators
        self._held = held
        #: Returns whether data may be appended in this step. The method itself of what is
        #: remembered, since every batch asks.
        self.holds = held.holds
        self._bases = bases
        self.calls: SharedCalls[HoldQuery, Codes] = SharedCalls(
            peers, VERSION, _encode, self._decode
        )

    def is_elsewhere(self, transactional_id: str | None) -> bool:
        """Return whether another node coordinates the id."""
        if not transactional_id:
            return False  # It is refused here.
        return self._coordinators.node_of(transactional_id) != self._coordinators.own_id

    async def ask(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Set[TopicPartition],
        *,
        adds: bool,
        is_abortable_known: bool,
        unreachable: ErrorCode,
    ) -> None:
        """Return once the transaction holds `partitions`. Append to them in the same step.

        Raises `unreachable`, on which clients try again, if the coordinator does not answer. Else
        as `Holds.hold` and `Holds.check_produce`.
        """
        asked = HoldQuery(transactional_id, identity, partitions, adds)
        for _ in range(_QUESTIONS_MAX):
            codes = await self._answer(asked, unreachable)
            for partition, code in codes.items():
                if code in _NOT_NOW:
                    raise KafkaError(unreachable, f"the coordinator answers {code.name}")
                if code is ErrorCode.TRANSACTION_ABORTABLE and not is_abortable_known:
                    code = ErrorCode.INVALID_TXN_STATE
                if code is not ErrorCode.NONE:
                    where = f"{partition.topic}-{partition.partition}"
                    raise KafkaError(code, f"{transactional_id}: its coordinator refuses {where}")
            if all(self.holds(transactional_id, *identity, one) for one in partitions):
                return
        # Markers have made every answer void: the producer is being fenced.
        raise KafkaError(unreachable, f"{transactional_id} ends while it is asked about")

    def told(self, request: HoldsToldRequest) -> None:
        """Remember a hold that a coordinator on another node tells without being asked."""
        own_id, leader_of = self._coordinators.own_id, self._coordinators.leader_of
        held = {
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partitions
            if leader_of(topic.name, index) == own_id
        }
        identity = request.producer_id, request.producer_epoch
        self._held.told(request.transactional_id, *identity, held)

    async def adopt(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> None:
        """Add a partition whose data outlived its add. Refuses as `ask`."""
        asked = HoldQuery(transactional_id, identity, {partition}, adds=True)
        codes = await self._answer(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if (code := codes[partition]) is not ErrorCode.NONE:
            raise KafkaError(code, f"{transactional_id}: its coordinator does not adopt")

    def cancel(self) -> None:
        """Ask no more."""
        self.calls.cancel()

    async def _answer(self, asked: HoldQuery, unreachable: ErrorCode) -> Codes:
        """Ask once; return the codes, and remember the partitions that are held."""
        node_id = self._coordinators.node_of(asked.transactional_id)
        question = self._held.ask(asked.transactional_id, *asked.identity)
        codes: Codes = {}
        try:
            codes = await self.calls.ask(node_id, asked)
        except PeerUnreachable as failure:
            raise KafkaError(unreachable, str(failure)) from None
        finally:
            own_id, leader_of = self._coordinators.own_id, self._coordinators.leader_of
            self._held.answered(
                question,
                [
                    one
                    for one, code in codes.items()
                    if code is ErrorCode.NONE and leader_of(*one) == own_id
                ],
            )
        return codes

    def _decode(self, response: Message) -> list[Codes]:
        assert isinstance(response, AddPartitionsToTxnResponse)
        # This is the step in which the answer arrives, so it comes before the data.
        rest_on_basis(response, self._bases)
        return [
            {
                TopicPartition(topic.name, one.partition_index): _CODES.get(
                    one.partition_error_code, ErrorCode.UNKNOWN_SERVER_ERROR
                )
                for topic in transaction.topic_results
                for one in topic.results_by_partition
            }
            for transaction in response.results_by_transaction
        ]


def _encode(asked: Sequence[HoldQuery]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.identity.producer_id,
                producer_epoch=one.identity.producer_epoch,
                verify_only=not one.adds,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=[index])
                    for topic, index in one.partitions
                ],
            )
            for one in asked
        ]
    )
