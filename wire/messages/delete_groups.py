"""DeleteGroups (API key 42): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = []


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = 0
    results: list[DeletableGroupResult] = []


class DeletableGroupResult(Struct):
    group_id: str = ""
    error_code: int16 = 0
