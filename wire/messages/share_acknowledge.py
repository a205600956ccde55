"""ShareAcknowledge (API key 79): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, in_versions, int8, int16, int32, int64


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible="1+"):
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int32 = 0
    is_renew_ack: bool = in_versions("2+")
    topics: list[AcknowledgeTopic] = []


class AcknowledgeTopic(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[AcknowledgePartition] = []


class AcknowledgePartition(Struct):
    partition_index: int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgementBatch(Struct):
    first_offset: int64 = 0
    last_offset: int64 = 0
    acknowledge_types: list[int8] = []


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="1+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int32 = in_versions("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = []


class NodeEndpoint(Struct):
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None


class PartitionData(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = in_versions()


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = 0
    leader_epoch: int32 = 0
