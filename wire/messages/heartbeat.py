"""Heartbeat (API key 12): versions 0-4.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, in_versions, int16, int32


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = ""
    generation_id: int32 = 0
    member_id: str = ""
    group_instance_id: str | None = in_versions("3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int32 = in_versions("1+", ignorable=True)
    error_code: int16 = 0
