"""OffsetForLeaderEpoch (API key 23): versions 2-4.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int32 = in_versions("3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic] = []


class OffsetForLeaderTopic(Struct):
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []


class OffsetForLeaderPartition(Struct):
    partition: int32 = 0
    current_leader_epoch: int32 = -1
    leader_epoch: int32 = 0


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []


class OffsetForLeaderTopicResult(Struct):
    topic: str = ""
    partitions: list[EpochEndOffset] = []


class EpochEndOffset(Struct):
    error_code: int16 = 0
    partition: int32 = 0
    leader_epoch: int32 = -1
    end_offset: int64 = -1
