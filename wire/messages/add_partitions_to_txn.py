"""AddPartitionsToTxn (API key 24): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    transactions: list[AddPartitionsToTxnTransaction] = in_versions("4+")
    v3_and_below_transactional_id: str = in_versions("0-3")
    v3_and_below_producer_id: int64 = in_versions("0-3")
    v3_and_below_producer_epoch: int16 = in_versions("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = in_versions("0-3")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnTopic(Struct):
    name: str = ""
    partitions: list[int32] = []


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = in_versions("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = in_versions("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = in_versions("0-3")


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnTopicResult(Struct):
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int32 = 0
    partition_error_code: int16 = 0
