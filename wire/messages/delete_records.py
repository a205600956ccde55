"""DeleteRecords (API key 21): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32, int64


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: int32 = 0


class DeleteRecordsTopic(Struct):
    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsPartition(Struct):
    partition_index: int32 = 0
    offset: int64 = 0


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = 0
    topics: list[DeleteRecordsTopicResult] = []


class DeleteRecordsTopicResult(Struct):
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsPartitionResult(Struct):
    partition_index: int32 = 0
    low_watermark: int64 = 0
    error_code: int16 = 0
