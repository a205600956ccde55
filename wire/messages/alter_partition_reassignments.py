"""AlterPartitionReassignments (API key 45): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int32 = 60000
    allow_replication_factor_change: bool = in_versions("1+", default=True)
    topics: list[ReassignableTopic] = []


class ReassignableTopic(Struct):
    name: str = ""
    partitions: list[ReassignablePartition] = []


class ReassignablePartition(Struct):
    partition_index: int32 = 0
    replicas: list[int32] | None = None


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = 0
    allow_replication_factor_change: bool = in_versions("1+", ignorable=True, default=True)
    error_code: int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = []


class ReassignableTopicResponse(Struct):
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = []


class ReassignablePartitionResponse(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
