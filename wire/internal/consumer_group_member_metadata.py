"""ConsumerGroupMemberMetadata (record type 5): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, in_versions, int32


class ConsumerGroupMemberMetadataKey(RecordKey, record_type=5, versions="0"):
    group_id: str = ""
    member_id: str = ""


class ConsumerGroupMemberMetadataValue(RecordValue, record_type=5, versions="0", flexible="0+"):
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: int32 = -1
    server_assignor: str | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = in_versions("0+", tag=0)


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ClassicProtocol(Struct):
    name: str = ""
    metadata: bytes = b""
