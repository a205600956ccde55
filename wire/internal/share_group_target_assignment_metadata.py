"""ShareGroupTargetAssignmentMetadata (record type 12): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, in_versions, int32, int64


class ShareGroupTargetAssignmentMetadataKey(RecordKey, record_type=12, versions="0"):
    group_id: str = ""


class ShareGroupTargetAssignmentMetadataValue(
    RecordValue, record_type=12, versions="0", flexible="0+"
):
    assignment_epoch: int32 = 0
    assignment_timestamp: int64 = in_versions("0+", tag=0)
