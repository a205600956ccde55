"""ShareGroupMetadata (record type 11): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, int32, int64


class ShareGroupMetadataKey(RecordKey, record_type=11, versions="0"):
    group_id: str = ""


class ShareGroupMetadataValue(RecordValue, record_type=11, versions="0", flexible="0+"):
    epoch: int32 = 0
    metadata_hash: int64 = 0
