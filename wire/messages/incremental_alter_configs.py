"""IncrementalAlterConfigs (API key 44): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int8, int16, int32


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResource(Struct):
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class AlterableConfig(Struct):
    name: str = ""
    config_operation: int8 = 0
    value: str | None = ""


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


class AlterConfigsResourceResponse(Struct):
    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
