"""ListGroups (API key 16): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = in_versions("4+")
    types_filter: list[str] = in_versions("5+")


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    error_code: int16 = 0
    groups: list[ListedGroup] = []


class ListedGroup(Struct):
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = in_versions("4+", ignorable=True)
    group_type: str = in_versions("5+", ignorable=True)
