"""DeleteGroups (API key 42): versions 0-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32


class DeleteGroupsRequest(Message, api_key=42, versions="0-3", flexible="2+"):
    groups_names: list[str] = []


class DeleteGroupsResponse(Message, api_key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: int32 = 0
    results: list[DeletableGroupResult] = []


class DeletableGroupResult(Struct):
    group_id: str = ""
    error_code: int16 = 0
    error_message: str | None = in_versions("3+", ignorable=True, default=None)
