"""AlterReplicaLogDirs (API key 34): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDir(Struct):
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirTopic(Struct):
    name: str = ""
    partitions: list[int32] = []


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
