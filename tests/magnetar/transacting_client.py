"""A transactional producer whose coordinator, partitions and groups are on different nodes."""

from __future__ import annotations

import time
from typing import Any

from coordinator.transactions.metadata import ProducerIdentity, State
from tests.logstore.partitions import batch_of
from tests.magnetar.nodes_in_one import NodesInOne
from wire.error_code import ErrorCode
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

V1, V2 = 1, 2
_PRODUCE = {V1: 11, V2: 12}
_END = {V1: 4, V2: 5}
_OFFSETS = {V1: 3, V2: 5}


class Client:
    """One transactional producer that sends each request to the node that it belongs to."""

    def __init__(self, nodes: NodesInOne, coordinator: int, version: int) -> None:
        self.nodes = nodes
        self.coordinator = coordinator
        self.version = version
        self.transactional_id = nodes.transactional_id(coordinator)
        self.identity = ProducerIdentity(-1, -1)
        self.sequences: dict[int, int] = {}

    async def init(self, timeout_ms: int = 60_000) -> int:
        client = await self.nodes.client(self.coordinator)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer = await client.ask(request, 4, InitProducerIdResponse)
        self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self.sequences.clear()
        return answer.error_code

    async def add(self, *node_ids: int) -> int:
        """Version 1: add the partitions of these nodes."""
        indexes = [self.nodes.partition(node_id) for node_id in node_ids]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=indexes)],
        )
        client = await self.nodes.client(self.coordinator)
        answer = await client.ask(request, 3, AddPartitionsToTxnResponse)
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        return next((one.partition_error_code for one in results if one.partition_error_code), 0)

    def batch(self, node_id: int) -> ProduceRequest:
        sequence = self.sequences.get(node_id, 0)
        self.sequences[node_id] = sequence + 1
        records = batch_of(
            b"apple",
            timestamp=time.time_ns() // 1_000_000,
            producer_id=self.identity.producer_id,
            epoch=self.identity.producer_epoch,
            sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=self.nodes.partition(node_id), records=records)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="a", partition_data=[data])],
        )

    async def produce(self, node_id: int, version: int | None = None) -> int:
        client = await self.nodes.client(node_id)
        request = self.batch(node_id)
        answer = await client.ask(request, version or _PRODUCE[self.version], ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    async def write(self, *node_ids: int) -> None:
        """Add where version 1 wants it, and produce to each."""
        if self.version == V1:
            assert await self.add(*node_ids) == ErrorCode.NONE
        for node_id in node_ids:
            assert await self.produce(node_id) == ErrorCode.NONE

    async def send_offset(self, group_node: int, offset: int, *, adds: bool = True) -> int:
        group_id = self.nodes.group_id(group_node)
        who: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.producer_epoch,
            "group_id": group_id,
        }
        if self.version == V1 and adds:
            client = await self.nodes.client(self.coordinator)
            added = await client.ask(AddOffsetsToTxnRequest(**who), 3, AddOffsetsToTxnResponse)
            assert added.error_code == ErrorCode.NONE
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = TxnOffsetCommitRequestTopic(name="a", partitions=[partition])
        client = await self.nodes.client(group_node)
        request = TxnOffsetCommitRequest(topics=[topic], **who)
        answer = await client.ask(request, _OFFSETS[self.version], TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    async def end(self, *, commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=commit,
        )
        client = await self.nodes.client(self.coordinator)
        answer = await client.ask(request, _END[self.version], EndTxnResponse)
        if self.version == V2 and answer.error_code == ErrorCode.NONE:
            self.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return answer.error_code

    def state(self) -> State | None:
        found = self.nodes.nodes[self.coordinator].transactions.find(self.transactional_id)
        return None if found is None else found.state
