"""ShareFetch (API key 78): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import (
    UUID,
    ZERO_UUID,
    Message,
    RecordBuffers,
    Struct,
    in_versions,
    int8,
    int16,
    int32,
    int64,
)


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible="1+"):
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int32 = 0
    max_wait_ms: int32 = 0
    min_bytes: int32 = 0
    max_bytes: int32 = 2147483647
    max_records: int32 = 0
    batch_size: int32 = 0
    share_acquire_mode: int8 = in_versions("2+", ignorable=True)
    is_renew_ack: bool = in_versions("2+")
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


class FetchTopic(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct):
    topic_id: UUID = ZERO_UUID
    partitions: list[int32] = []


class FetchPartition(Struct):
    partition_index: int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgementBatch(Struct):
    first_offset: int64 = 0
    last_offset: int64 = 0
    acknowledge_types: list[int8] = []


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="1+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []


class ShareFetchableTopicResponse(Struct):
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
    acknowledge_error_code: int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = in_versions()
    records: RecordBuffers = b""
    acquired_records: list[AcquiredRecords] = []


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = 0
    leader_epoch: int32 = 0


class AcquiredRecords(Struct):
    first_offset: int64 = 0
    last_offset: int64 = 0
    delivery_count: int16 = 0
