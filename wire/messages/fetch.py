"""Fetch (API key 1): versions 4-18.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import (
    UUID,
    Message,
    RecordBuffers,
    Struct,
    in_versions,
    int8,
    int16,
    int32,
    int64,
)


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = in_versions("12+", tag=0, ignorable=True, default=None)
    replica_id: int32 = in_versions("4-14", default=-1)
    replica_state: ReplicaState = in_versions("15+", tag=1)
    max_wait_ms: int32 = 0
    min_bytes: int32 = 0
    max_bytes: int32 = 2147483647
    isolation_level: int8 = 0
    session_id: int32 = in_versions("7+", ignorable=True)
    session_epoch: int32 = in_versions("7+", ignorable=True, default=-1)
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = in_versions("7+")
    rack_id: str = in_versions("11+", ignorable=True)


class ReplicaState(Struct):
    replica_id: int32 = -1
    replica_epoch: int64 = -1


class FetchTopic(Struct):
    topic: str = in_versions("4-12", ignorable=True)
    topic_id: UUID = in_versions("13+", ignorable=True)
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct):
    topic: str = in_versions("7-12", ignorable=True)
    topic_id: UUID = in_versions("13+", ignorable=True)
    partitions: list[int32] = []


class FetchPartition(Struct):
    partition: int32 = 0
    current_leader_epoch: int32 = in_versions("9+", ignorable=True, default=-1)
    fetch_offset: int64 = 0
    last_fetched_epoch: int32 = in_versions("12+", default=-1)
    log_start_offset: int64 = in_versions("5+", ignorable=True, default=-1)
    partition_max_bytes: int32 = 0
    replica_directory_id: UUID = in_versions("17+", tag=0, ignorable=True)
    high_watermark: int64 = in_versions("18+", tag=1, ignorable=True, default=9223372036854775807)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = in_versions("7+", ignorable=True)
    session_id: int32 = in_versions("7+")
    responses: list[FetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = in_versions("16+", tag=0)


class FetchableTopicResponse(Struct):
    topic: str = in_versions("4-12", ignorable=True)
    topic_id: UUID = in_versions("13+", ignorable=True)
    partitions: list[PartitionData] = []


class NodeEndpoint(Struct):
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None


class PartitionData(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
    high_watermark: int64 = 0
    last_stable_offset: int64 = -1
    log_start_offset: int64 = in_versions("5+", ignorable=True, default=-1)
    diverging_epoch: EpochEndOffset = in_versions("12+", tag=0)
    current_leader: LeaderIdAndEpoch = in_versions("12+", tag=1)
    snapshot_id: SnapshotId = in_versions("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: int32 = in_versions("11+", default=-1)
    records: RecordBuffers | None = None


class EpochEndOffset(Struct):
    epoch: int32 = -1
    end_offset: int64 = -1


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = -1
    leader_epoch: int32 = -1


class SnapshotId(Struct):
    end_offset: int64 = -1
    epoch: int32 = -1


class AbortedTransaction(Struct):
    producer_id: int64 = 0
    first_offset: int64 = 0
