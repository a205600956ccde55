"""TxnOffsetCommit (API key 28): versions 0-6.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, Message, Struct, in_versions, int16, int32, int64


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = ""
    group_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    generation_id_or_member_epoch: int32 = in_versions("3+", default=-1)
    member_id: str = in_versions("3+")
    group_instance_id: str | None = in_versions("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitRequestTopic(Struct):
    name: str = in_versions("0-5", ignorable=True)
    topic_id: UUID = in_versions("6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = in_versions("2+", ignorable=True, default=-1)
    committed_metadata: str | None = ""


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []


class TxnOffsetCommitResponseTopic(Struct):
    name: str = in_versions("0-5", ignorable=True)
    topic_id: UUID = in_versions("6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
