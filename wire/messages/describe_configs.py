"""DescribeConfigs (API key 32): versions 1-4.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: bool = in_versions("3+")


class DescribeConfigsResource(Struct):
    resource_type: int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int32 = 0
    results: list[DescribeConfigsResult] = []


class DescribeConfigsResult(Struct):
    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResourceResult(Struct):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int8 = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: int8 = in_versions("3+", ignorable=True)
    documentation: str | None = in_versions("3+", ignorable=True)


class DescribeConfigsSynonym(Struct):
    name: str = ""
    value: str | None = ""
    source: int8 = 0
