"""One transactional id, and what it says on a raw connection, request by request."""

from __future__ import annotations

import time

from coordinator.transactions.metadata import ProducerIdentity
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)


class RawProducer:
    """A producer of version 1 of transactions, or of 2 where a request's version says so.

    Each method returns the error code of its answer.
    """

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.identity = ProducerIdentity(-1, -1)

    async def init(self, timeout_ms: int = 60_000) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer = await self.client.ask(request, 4, InitProducerIdResponse)
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    async def add(self) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])],
        )
        answer = await self.client.ask(request, 3, AddPartitionsToTxnResponse)
        results = answer.results_by_topic_v3_and_below
        return results[0].results_by_partition[0].partition_error_code

    async def produce(self, version: int, value: bytes = b"apple", sequence: int = 0) -> int:
        batch = batch_of(
            value,
            timestamp=time.time_ns() // 1_000_000,
            producer_id=self.identity.producer_id,
            epoch=self.identity.producer_epoch,
            sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="a", partition_data=[data])],
        )
        answer = await self.client.ask(request, version, ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    async def end(self, *, commit: bool, version: int = 4) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=commit,
        )
        return (await self.client.ask(request, version, EndTxnResponse)).error_code

    async def send_offset(self, group_id: str, offset: int, version: int = 3) -> int:
        adding = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            group_id=group_id,
        )
        added = await self.client.ask(adding, 3, AddOffsetsToTxnResponse)
        if added.error_code:
            return added.error_code
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name="a", partitions=[partition])],
        )
        answer = await self.client.ask(request, version, TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code
