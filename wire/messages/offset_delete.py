"""OffsetDelete (API key 47): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteRequestTopic(Struct):
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequestPartition(Struct):
    partition_index: int32 = 0


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []


class OffsetDeleteResponseTopic(Struct):
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponsePartition(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
