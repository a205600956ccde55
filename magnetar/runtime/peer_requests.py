"""The requests of peers to this node: holds, markers, and questions for producer ids.

Each method does all that changes state before it returns the answer, or a wait for the disk. So
requests take effect in the order in which they arrive. Many markers are an exception: they take
several turns of the event loop, and markers that arrive meanwhile wait for them. A peer whose
connection breaks sends its markers again on a new one. So the first copy has its whole effect
before the second is answered. The requests come from nodes that have proven themselves
(`magnetar.peers`) and need no permission.

WriteTxnMarkers of a peer carries the epoch of its coordinator's shard, which is not compared with
the leader epochs of this node: the two count different starts. The same request of a client goes
another way, and is checked (`magnetar.apis.write_txn_markers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from coordinator.transactions.add_partitions import check_holds
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from coordinator.transactions.records import encode_record
from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import Bases
from logstore.sync.group_commit import LedgerClosed
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.add_messages import encode_held, partitions_of
from magnetar.runtime.bases import name_basis, rest_on_basis
from magnetar.runtime.delayed_response import DelayedResponse, when_durable
from magnetar.runtime.marker_messages import OwedMarkers, owed_by
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.peer_messages import (
    CatalogChangedRequest,
    CatalogChangedResponse,
    FindProducersRequest,
    FindProducersResponse,
    FoundProducer,
)
from magnetar.runtime.transactions import Transactions
from magnetar.runtime.turns import Turns
from magnetar.storage.database import CatalogUnavailable
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: The answer to a verification names all partitions of a transaction that has at most so many. The
#: answers would be long for a larger transaction, which grows by one partition after the other.
_TOLD_MAX = 256

#: How long an answer waits for the disk. By then the peer has given up the call.
_ANSWER_S_MAX = 30.0

_log = get_logger("peers")

#: A log, and the end offset (exclusive) up to which it is awaited.
_Awaited = tuple[PartitionLog, int]
#: A marker that was appended: its partition's answer, and what that waits for.
_Marked = tuple[WritableTxnMarkerPartitionResult, _Awaited]


class PeerRequests:
    """Serves the requests of peers."""

    def __init__(
        self,
        transactions: Transactions,
        participants: LocalParticipants,
        clock: Clock,
        turns: Turns,
        see_changes: Callable[[], Awaitable[int]],
        bases: Bases | None,
    ) -> None:
        """`see_changes` applies the catalog's changes. `bases`: what this node tells peers rests on
        its commits, and what they tell this node rests on theirs."""
        self._bases = bases
        self._transactions = transactions
        self._participants = participants
        self._clock = clock
        self._turns = turns
        #: How many requests have markers left to append.
        self._unfinished = 0
        #: Held by the request that appends its markers in turns; the others get it in their order.
        self._marking = asyncio.Lock()
        self._see_changes = see_changes
        #: Whether the catalog did not answer when it was read last, which the log says once.
        self._is_catalog_away = False

    def catalog_changed(self, request: CatalogChangedRequest) -> Callable[[], Awaitable[Message]]:
        """Answer once this node has applied the catalog as it is now; REQUEST_TIMED_OUT where the
        catalog does not answer."""
        return self._catalog_seen

    async def _catalog_seen(self) -> Message:
        try:
            await self._see_changes()
        except CatalogUnavailable as away:
            # This node's own look finds the change once the catalog answers again.
            if not self._is_catalog_away:
                _log.warning("a peer's change of the catalog is read later", reason=away.detail)
            self._is_catalog_away = True
            return CatalogChangedResponse(error_code=away.code)
        self._is_catalog_away = False
        return CatalogChangedResponse()

    # --- AddPartitionsToTxn

    def add_partitions(self, request: AddPartitionsToTxnRequest) -> Message | DelayedResponse:
        """Add or verify the partitions of each transaction; answer once that is ordered."""
        awaited: list[_Awaited] = []
        results = [self._add_or_verify(one, awaited) for one in request.transactions]
        response = AddPartitionsToTxnResponse(results_by_transaction=results)

        def make(_: bool) -> Message:
            for log, end_offset in awaited:
                if not log.ledger.is_ordered(end_offset):
                    log.ledger.check_open()
            name_basis(response, self._bases)
            return response

        delayed = DelayedResponse(_ANSWER_S_MAX, make)
        for log, end_offset in awaited:
            delayed.waits += log.ledger.when_ordered(end_offset, delayed.on_durable)
        return delayed if delayed.waits else make(False)

    def _add_or_verify(
        self, asked: AddPartitionsToTxnTransaction, awaited: list[_Awaited]
    ) -> AddPartitionsToTxnResult:
        partitions = partitions_of(asked.topics)
        identity = ProducerIdentity(asked.producer_id, asked.producer_epoch)
        perform = self._verify if asked.verify_only else self._add
        try:
            codes = perform(asked.transactional_id, identity, partitions, awaited)
        except KafkaError as refusal:
            codes = dict.fromkeys(partitions, refusal.code)
        return AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id,
            topic_results=encode_held(codes),
        )

    def _add(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        awaited: list[_Awaited],
    ) -> dict[TopicPartition, ErrorCode]:
        # The end of the transaction before has to be ordered too: data follows the answer.
        awaited.append(
            self._transactions.holds.add_for_data(transactional_id, identity, frozenset(partitions))
        )
        return dict.fromkeys(partitions, ErrorCode.NONE)

    def _verify(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        awaited: list[_Awaited],
    ) -> dict[TopicPartition, ErrorCode]:
        shard = self._transactions.store.shard_of(transactional_id)
        txn = shard.state.get(transactional_id)
        codes = dict.fromkeys(partitions, ErrorCode.NONE)
        for partition in partitions:
            try:
                check_holds(txn, *identity, partition, is_abortable_known=True)
            except KafkaError as refusal:
                codes[partition] = refusal.code
        awaited.append((shard.log, shard.log.log_end_offset))
        is_held = txn is not None and ErrorCode.NONE in codes.values()
        # All partitions that the transaction holds, so that the peer need not ask for the next one.
        if txn is not None and is_held and len(txn.partitions) <= _TOLD_MAX:
            codes.update(dict.fromkeys(txn.partitions, ErrorCode.NONE))
        return codes

    # --- WriteTxnMarkers

    def write_markers(
        self, request: WriteTxnMarkersRequest
    ) -> Message | DelayedResponse | Callable[[], Awaitable[Message]]:
        """Append markers; answer each partition once its marker is durable and visible."""
        rest_on_basis(request, self._bases)
        response, marked = WriteTxnMarkersResponse(markers=[]), list[_Marked]()
        steps = self._append_all(request, response, marked)
        # `next` appends what fits into this turn. Behind unfinished requests nothing is appended.
        if not (self._unfinished or next(steps, False)):
            return _when_marked(response, marked)
        self._unfinished += 1
        return partial(self._mark_in_turns, steps, response, marked)

    async def _mark_in_turns(
        self, steps: Iterator[bool], response: WriteTxnMarkersResponse, marked: list[_Marked]
    ) -> Message:
        try:
            async with self._marking:
                for _ in steps:
                    # Not `give_up`: transactions wait for no handler, and for no large response.
                    await asyncio.sleep(0)
        finally:
            self._unfinished -= 1
        for _, (log, end_offset) in marked:
            with suppress(LedgerClosed):
                await log.durable(end_offset)
        return _settled(response, marked)

    def _append_all(
        self,
        request: WriteTxnMarkersRequest,
        response: WriteTxnMarkersResponse,
        marked: list[_Marked],
    ) -> Iterator[bool]:
        """Append the markers of a request; yield True whenever a turn of the event loop is over."""
        is_begun = False
        for marker in request.markers:
            owed = owed_by(marker)
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            response.markers.append(result)
            for topic in owed.topics:
                partitions: list[WritableTxnMarkerPartitionResult] = []
                result.topics.append(
                    WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)
                )
                for index in topic.partition_indexes:
                    # Not before the first marker: a short request asks for no turn.
                    if is_begun and self._turns.is_over():
                        yield True
                    is_begun = True
                    partition = TopicPartition(topic.name, index)
                    partitions.append(self._append(owed, partition, marked))

    def _append(
        self,
        owed: OwedMarkers,
        partition: TopicPartition,
        marked: list[_Marked],
    ) -> WritableTxnMarkerPartitionResult:
        """Append one marker; return its result, which is in `marked` with what it waits for."""
        result = WritableTxnMarkerPartitionResult(
            partition_index=partition.partition, error_code=ErrorCode.NONE
        )
        try:
            appended = self._participants.append_owed(
                owed.work, partition, owed.part, owed.coordinator_epoch, self._clock.now_ms()
            )
        except KafkaError as refusal:
            result.error_code = refusal.code
        else:
            marked.append((result, appended))
        return result

    # --- healing

    def find_producers(self, request: FindProducersRequest) -> Message | DelayedResponse:
        """Answer what this node coordinates under some producer ids, once that is durable."""
        found = []
        for producer_id in request.producer_ids:
            txn = self._transactions.find_by_producer(producer_id)
            if txn is not None:
                record = encode_record(txn)
                epoch = self._transactions.store.shard_of(txn.transactional_id).log.leader_epoch
                assert record.key is not None and record.value is not None, "it is not DEAD"
                found.append(
                    FoundProducer(
                        producer_id=producer_id,
                        coordinator_epoch=epoch,
                        key=record.key,
                        value=record.value,
                    )
                )
        # In the step of the look-up: later records are no part of what was found.
        shards = self._transactions.store.shards
        ends = [(shard.log, shard.log.log_end_offset) for shard in shards]
        loaded = [shard.log.partition for shard in shards]
        response = FindProducersResponse(producers=found, shards=loaded)
        # A late answer is not sent, so there is nothing to say in it (`magnetar.peers.listening`).
        return when_durable(response, ends, _ANSWER_S_MAX, lambda: None)


def _when_marked(
    response: WriteTxnMarkersResponse, marked: Sequence[_Marked]
) -> Message | DelayedResponse:
    """Return `response`, delayed until the markers are durable."""
    delayed = DelayedResponse(_ANSWER_S_MAX, lambda _: _settled(response, marked))
    for _, (log, end_offset) in marked:
        delayed.wait_for(log.ledger, end_offset)
    return delayed if delayed.waits else _settled(response, marked)


def _settled(response: WriteTxnMarkersResponse, marked: Sequence[_Marked]) -> Message:
    """Return `response`, in which a partition is unknown that was deleted before its marker was
    durable. Raises StorageFailure."""
    for result, (log, end_offset) in marked:
        if log.reader.high_watermark >= end_offset:
            continue
        try:
            log.ledger.check_open()
        except LedgerClosed:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return response
