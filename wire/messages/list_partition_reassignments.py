"""ListPartitionReassignments (API key 46): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class ListPartitionReassignmentsTopics(Struct):
    name: str = ""
    partition_indexes: list[int32] = []


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = []


class OngoingTopicReassignment(Struct):
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []


class OngoingPartitionReassignment(Struct):
    partition_index: int32 = 0
    replicas: list[int32] = []
    adding_replicas: list[int32] = []
    removing_replicas: list[int32] = []
