"""TransactionLog (record type 0): versions 0, value 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, in_versions, int8, int16, int32, int64


class TransactionLogKey(RecordKey, record_type=0, versions="0"):
    transactional_id: str = ""


class TransactionLogValue(RecordValue, record_type=0, versions="0-1", flexible="1+"):
    producer_id: int64 = 0
    previous_producer_id: int64 = in_versions("1+", tag=0, default=-1)
    next_producer_id: int64 = in_versions("1+", tag=1, default=-1)
    producer_epoch: int16 = 0
    next_producer_epoch: int16 = in_versions("1+", tag=3, default=-1)
    transaction_timeout_ms: int32 = 0
    transaction_status: int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: int64 = 0
    transaction_start_timestamp_ms: int64 = 0
    client_transaction_version: int16 = in_versions("1+", tag=2)


class PartitionsSchema(Struct):
    topic: str = ""
    partition_ids: list[int32] = []
