"""DescribeLogDirs (API key 35): versions 1-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = []


class DescribableLogDirTopic(Struct):
    topic: str = ""
    partitions: list[int32] = []


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = in_versions("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = []


class DescribeLogDirsResult(Struct):
    error_code: int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: int64 = in_versions("4+", ignorable=True, default=-1)
    usable_bytes: int64 = in_versions("4+", ignorable=True, default=-1)
    is_cordoned: bool = in_versions("5+", ignorable=True)


class DescribeLogDirsTopic(Struct):
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsPartition(Struct):
    partition_index: int32 = 0
    partition_size: int64 = 0
    offset_lag: int64 = 0
    is_future_key: bool = False
