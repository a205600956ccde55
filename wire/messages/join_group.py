"""JoinGroup (API key 11): versions 0-9.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = ""
    session_timeout_ms: int32 = 0
    rebalance_timeout_ms: int32 = in_versions("1+", ignorable=True, default=-1)
    member_id: str = ""
    group_instance_id: str | None = in_versions("5+", default=None)
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: str | None = in_versions("8+", ignorable=True, default=None)


class JoinGroupRequestProtocol(Struct):
    name: str = ""
    metadata: bytes = b""


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int32 = in_versions("2+", ignorable=True)
    error_code: int16 = 0
    generation_id: int32 = -1
    protocol_type: str | None = in_versions("7+", ignorable=True, default=None)
    protocol_name: str | None = in_versions("0+", nullable="7+")
    leader: str = ""
    skip_assignment: bool = in_versions("9+")
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []


class JoinGroupResponseMember(Struct):
    member_id: str = ""
    group_instance_id: str | None = in_versions("5+", ignorable=True, default=None)
    metadata: bytes = b""
