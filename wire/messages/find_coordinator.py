"""FindCoordinator (API key 10): versions 0-6.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    key: str = in_versions("0-3")
    key_type: int8 = in_versions("1+")
    coordinator_keys: list[str] = in_versions("4+")


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    error_code: int16 = in_versions("0-3")
    error_message: str | None = in_versions("1-3", ignorable=True)
    node_id: int32 = in_versions("0-3")
    host: str = in_versions("0-3")
    port: int32 = in_versions("0-3")
    coordinators: list[Coordinator] = in_versions("4+")


class Coordinator(Struct):
    key: str = ""
    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
