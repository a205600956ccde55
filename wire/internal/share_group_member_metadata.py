"""ShareGroupMemberMetadata (record type 10): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue


class ShareGroupMemberMetadataKey(RecordKey, record_type=10, versions="0"):
    group_id: str = ""
    member_id: str = ""


class ShareGroupMemberMetadataValue(RecordValue, record_type=10, versions="0", flexible="0+"):
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
