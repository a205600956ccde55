"""StreamsGroupMemberMetadata (record type 19): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, int32, uint16


class StreamsGroupMemberMetadataKey(RecordKey, record_type=19, versions="0"):
    group_id: str = ""
    member_id: str = ""


class StreamsGroupMemberMetadataValue(RecordValue, record_type=19, versions="0", flexible="0+"):
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int32 = -1
    topology_epoch: int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []


class Endpoint(Struct):
    host: str = ""
    port: uint16 = 0


class KeyValue(Struct):
    key: str = ""
    value: str = ""
