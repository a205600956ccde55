"""DescribeCluster (API key 60): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class DescribeClusterRequest(Message, api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int8 = in_versions("1+", default=1)
    include_fenced_brokers: bool = in_versions("2+")


class DescribeClusterResponse(Message, api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    endpoint_type: int8 = in_versions("1+", default=1)
    cluster_id: str = ""
    controller_id: int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: int32 = -2147483648


class DescribeClusterBroker(Struct):
    broker_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None
    is_fenced: bool = in_versions("2+")
