"""EndTxn (API key 26): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, in_versions, int16, int32, int64


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    committed: bool = False


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = in_versions("5+", ignorable=True, default=-1)
    producer_epoch: int16 = in_versions("5+", ignorable=True, default=-1)
