"""InitProducerId (API key 22): versions 0-5.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, in_versions, int16, int32, int64


class InitProducerIdRequest(Message, api_key=22, versions="0-5", flexible="2+"):
    transactional_id: str | None = ""
    transaction_timeout_ms: int32 = 0
    producer_id: int64 = in_versions("3+", default=-1)
    producer_epoch: int16 = in_versions("3+", default=-1)


class InitProducerIdResponse(Message, api_key=22, versions="0-5", flexible="2+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = -1
    producer_epoch: int16 = 0
