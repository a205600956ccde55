"""DescribeTransactions (API key 65): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32, int64


class DescribeTransactionsRequest(Message, api_key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = []


class DescribeTransactionsResponse(Message, api_key=65, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    transaction_states: list[TransactionState] = []


class TransactionState(Struct):
    error_code: int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int32 = 0
    transaction_start_time_ms: int64 = 0
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    topics: list[TopicData] = []


class TopicData(Struct):
    topic: str = ""
    partitions: list[int32] = []
