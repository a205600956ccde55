"""DescribeGroups (API key 15): versions 0-6.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = []
    include_authorized_operations: bool = in_versions("3+")


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    groups: list[DescribedGroup] = []


class DescribedGroup(Struct):
    error_code: int16 = 0
    error_message: str | None = in_versions("6+", default=None)
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: int32 = in_versions("3+", default=-2147483648)


class DescribedGroupMember(Struct):
    member_id: str = ""
    group_instance_id: str | None = in_versions("4+", ignorable=True, default=None)
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""
