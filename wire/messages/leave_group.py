"""LeaveGroup (API key 13): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = ""
    member_id: str = in_versions("0-2")
    members: list[MemberIdentity] = in_versions("3+")


class MemberIdentity(Struct):
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = in_versions("5+", ignorable=True, default=None)


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    error_code: int16 = 0
    members: list[MemberResponse] = in_versions("3+")


class MemberResponse(Struct):
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int16 = 0
