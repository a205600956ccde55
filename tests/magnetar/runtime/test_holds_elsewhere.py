"""Data whose coordinator is another node: what is asked, what is remembered, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from coordinator.transactions.remembered_holds import RememberedHolds
from magnetar.runtime.holds_elsewhere import HoldsElsewhere
from magnetar.runtime.peers import PeerUnreachable
from tests.magnetar.runtime.responding_peers import RespondingPeers
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
PRODUCER = ProducerIdentity(1000, 5)


class Coordinator(RespondingPeers):
    """The coordinator of every id, on node 1; this is node 0."""

    own_id = 0

    def __init__(self) -> None:
        self.code: int = ErrorCode.NONE
        self.is_reachable = True
        self.asked: list[tuple[bool, int]] = []
        #: Called with each question, before its answer.
        self.meanwhile: Callable[[], None] = lambda: None
        self.held = RememberedHolds()
        self.holds = HoldsElsewhere(self, self, self.held, None)

    def node_of(self, transactional_id: str) -> int:
        return 0 if transactional_id == "mine" else 1

    def leader_of(self, topic: str, partition: int) -> int | None:
        return {"a": 0, "b": 1}.get(topic)

    async def respond(self, node_id: int, request: Message, version: int) -> Message:
        sent = AddPartitionsToTxnRequest.decode(request.encode(version), version)
        results = []
        for one in sent.transactions:
            self.asked.append((one.verify_only, one.producer_epoch))
            topics = [
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=self.code
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in one.topics
            ]
            results.append(
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id, topic_results=topics
                )
            )
        self.meanwhile()
        if not self.is_reachable:
            raise PeerUnreachable(node_id, "it is gone")
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    async def ask(self, *, adds: bool = True, is_abortable_known: bool = True) -> None:
        await self.holds.ask(
            "tx",
            PRODUCER,
            {A0, A1},
            adds=adds,
            is_abortable_known=is_abortable_known,
            unreachable=ErrorCode.NOT_ENOUGH_REPLICAS,
        )


@pytest.mark.parametrize("adds", [True, False])
async def test_what_the_coordinator_holds_may_be_written_to(adds: bool) -> None:
    coordinator = Coordinator()
    assert not coordinator.holds.holds("tx", *PRODUCER, A0)
    await coordinator.ask(adds=adds)
    for partition in (A0, A1):
        assert coordinator.holds.holds("tx", *PRODUCER, partition)
        assert not coordinator.holds.holds("another", *PRODUCER, partition)
    assert coordinator.asked == [(not adds, PRODUCER.producer_epoch)]


async def test_a_marker_that_overtakes_the_answer_makes_it_void() -> None:
    coordinator = Coordinator()

    def marker() -> None:
        if len(coordinator.asked) == 1:
            coordinator.held.on_marker(PRODUCER.producer_id, A1)

    coordinator.meanwhile = marker
    await coordinator.ask()
    assert len(coordinator.asked) == 2, "the first answer was about a transaction that is over"


async def test_a_producer_whose_transactions_end_as_fast_as_it_asks_is_sent_away() -> None:
    coordinator = Coordinator()
    coordinator.meanwhile = lambda: coordinator.held.on_marker(PRODUCER.producer_id, A0)
    with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        await coordinator.ask()
    assert not coordinator.holds.holds("tx", *PRODUCER, A0)


@pytest.mark.parametrize(
    ("code", "is_abortable_known", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, True, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, False, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, True, ErrorCode.NOT_ENOUGH_REPLICAS),
        # Of a later version: what it means is not known here.
        (9999, True, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_what_the_coordinator_refuses_is_refused(
    code: int, is_abortable_known: bool, told: ErrorCode
) -> None:
    coordinator = Coordinator()
    coordinator.code = code
    with pytest.raises(KafkaError, match=told.name):
        await coordinator.ask(is_abortable_known=is_abortable_known)
    assert not coordinator.holds.holds("tx", *PRODUCER, A0) and not len(coordinator.held)


async def test_a_coordinator_that_does_not_answer_holds_nothing() -> None:
    coordinator = Coordinator()
    coordinator.is_reachable = False
    with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        await coordinator.ask()
    assert not len(coordinator.held)


def test_ids_of_this_node_and_none_at_all_are_not_asked_for() -> None:
    holds = Coordinator().holds
    assert holds.is_elsewhere("tx")
    assert not any(holds.is_elsewhere(each) for each in ("mine", "", None))
