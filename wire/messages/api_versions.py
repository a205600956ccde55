"""ApiVersions (API key 18): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class ApiVersionsRequest(Message, api_key=18, versions="0-5", flexible="3+"):
    client_software_name: str = in_versions("3+", ignorable=True)
    client_software_version: str = in_versions("3+", ignorable=True)
    cluster_id: str | None = in_versions("5+", ignorable=True, default=None)
    node_id: int32 = in_versions("5+", ignorable=True, default=-1)


class ApiVersionsResponse(Message, api_key=18, versions="0-5", flexible="3+"):
    error_code: int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = in_versions("3+", tag=0, ignorable=True)
    finalized_features_epoch: int64 = in_versions("3+", tag=1, ignorable=True, default=-1)
    finalized_features: list[FinalizedFeatureKey] = in_versions("3+", tag=2, ignorable=True)
    zk_migration_ready: bool = in_versions("3+", tag=3, ignorable=True)


class ApiVersion(Struct):
    api_key: int16 = 0
    min_version: int16 = 0
    max_version: int16 = 0


class SupportedFeatureKey(Struct):
    name: str = ""
    min_version: int16 = 0
    max_version: int16 = 0


class FinalizedFeatureKey(Struct):
    name: str = ""
    max_version_level: int16 = 0
    min_version_level: int16 = 0
