"""ElectLeaders (API key 43): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    election_type: int8 = in_versions("1+")
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: int32 = 60000


class TopicPartitions(Struct):
    topic: str = ""
    partitions: list[int32] = []


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = in_versions("1+")
    replica_election_results: list[ReplicaElectionResult] = []


class ReplicaElectionResult(Struct):
    topic: str = ""
    partition_result: list[PartitionResult] = []


class PartitionResult(Struct):
    partition_id: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
