"""SyncGroup (API key 14): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = ""
    generation_id: int32 = 0
    member_id: str = ""
    group_instance_id: str | None = in_versions("3+", default=None)
    protocol_type: str | None = in_versions("5+", ignorable=True, default=None)
    protocol_name: str | None = in_versions("5+", ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupRequestAssignment(Struct):
    member_id: str = ""
    assignment: bytes = b""


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    error_code: int16 = 0
    protocol_type: str | None = in_versions("5+", ignorable=True, default=None)
    protocol_name: str | None = in_versions("5+", ignorable=True, default=None)
    assignment: bytes = b""
