"""GroupMetadata (record type 2): versions 0, value 0-4.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, in_versions, int32, int64


class GroupMetadataKey(RecordKey, record_type=2, versions="0"):
    group: str = ""


class GroupMetadataValue(RecordValue, record_type=2, versions="0-4", flexible="4+"):
    protocol_type: str = ""
    generation: int32 = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: int64 = in_versions("2+", ignorable=True, default=-1)
    members: list[MemberMetadata] = []


class MemberMetadata(Struct):
    member_id: str = ""
    group_instance_id: str | None = in_versions("3+", ignorable=True, default=None)
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int32 = in_versions("1+", ignorable=True, default=-1)
    session_timeout: int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""
