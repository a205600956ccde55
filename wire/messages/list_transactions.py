"""ListTransactions (API key 66): versions 0-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class ListTransactionsRequest(Message, api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = []
    producer_id_filters: list[int64] = []
    duration_filter: int64 = in_versions("1+", default=-1)
    transactional_id_pattern: str | None = in_versions("2+", default=None)


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_state_filters: list[str] = []
    transaction_states: list[TransactionState] = []


class TransactionState(Struct):
    transactional_id: str = ""
    producer_id: int64 = 0
    transaction_state: str = ""
