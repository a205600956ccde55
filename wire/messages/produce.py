"""Produce (API key 0): versions 3-13.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Records, Struct, in_versions, int16, int32, int64


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = None
    acks: int16 = 0
    timeout_ms: int32 = 0
    topic_data: list[TopicProduceData] = []


class TopicProduceData(Struct):
    name: str = in_versions("3-12", ignorable=True)
    topic_id: UUID = in_versions("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = []


class PartitionProduceData(Struct):
    index: int32 = 0
    records: Records | None = None


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int32 = 0
    node_endpoints: list[NodeEndpoint] = in_versions("10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = in_versions("3-12", ignorable=True)
    topic_id: UUID = in_versions("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Struct):
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None


class PartitionProduceResponse(Struct):
    index: int32 = 0
    error_code: int16 = 0
    base_offset: int64 = 0
    log_append_time_ms: int64 = -1
    log_start_offset: int64 = in_versions("5+", ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = in_versions("8+", ignorable=True)
    error_message: str | None = in_versions("8+", ignorable=True, default=None)
    current_leader: LeaderIdAndEpoch = in_versions("10+", tag=0)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int32 = 0
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = -1
    leader_epoch: int32 = -1
