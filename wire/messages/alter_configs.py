"""AlterConfigs (API key 33): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int8, int16, int32


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


class AlterConfigsResource(Struct):
    resource_type: int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


class AlterableConfig(Struct):
    name: str = ""
    value: str | None = ""


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


class AlterConfigsResourceResponse(Struct):
    error_code: int16 = 0
    error_message: str | None = ""
    resource_type: int8 = 0
    resource_name: str = ""
