"""ListConfigResources (API key 74): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int8] = in_versions("1+")


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    config_resources: list[ConfigResource] = []


class ConfigResource(Struct):
    resource_name: str = ""
    resource_type: int8 = in_versions("1+", ignorable=True, default=16)
