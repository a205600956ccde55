"""DescribeProducers (API key 61): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32, int64


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = []


class TopicRequest(Struct):
    name: str = ""
    partition_indexes: list[int32] = []


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    topics: list[TopicResponse] = []


class TopicResponse(Struct):
    name: str = ""
    partitions: list[PartitionResponse] = []


class PartitionResponse(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []


class ProducerState(Struct):
    producer_id: int64 = 0
    producer_epoch: int32 = 0
    last_sequence: int32 = -1
    last_timestamp: int64 = -1
    coordinator_epoch: int32 = 0
    current_txn_start_offset: int64 = -1
