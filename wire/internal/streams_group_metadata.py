"""StreamsGroupMetadata (record type 17): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, in_versions, int32, int64


class StreamsGroupMetadataKey(RecordKey, record_type=17, versions="0"):
    group_id: str = ""


class StreamsGroupMetadataValue(RecordValue, record_type=17, versions="0", flexible="0+"):
    epoch: int32 = 0
    metadata_hash: int64 = 0
    validated_topology_epoch: int32 = in_versions("0+", tag=0, default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = in_versions("0+", tag=1)


class LastAssignmentConfig(Struct):
    key: str = ""
    value: str = ""
