"""CreateAcls (API key 30): versions 1-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int8, int16, int32


class CreateAclsRequest(Message, api_key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = []


class AclCreation(Struct):
    resource_type: int8 = 0
    resource_name: str = ""
    resource_pattern_type: int8 = 3
    principal: str = ""
    host: str = ""
    operation: int8 = 0
    permission_type: int8 = 0


class CreateAclsResponse(Message, api_key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int32 = 0
    results: list[AclCreationResult] = []


class AclCreationResult(Struct):
    error_code: int16 = 0
    error_message: str | None = ""
