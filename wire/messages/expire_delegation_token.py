"""ExpireDelegationToken (API key 40): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, int16, int32, int64


class ExpireDelegationTokenRequest(Message, api_key=40, versions="1-2", flexible="2+"):
    hmac: bytes = b""
    expiry_time_period_ms: int64 = 0


class ExpireDelegationTokenResponse(Message, api_key=40, versions="1-2", flexible="2+"):
    error_code: int16 = 0
    expiry_timestamp_ms: int64 = 0
    throttle_time_ms: int32 = 0
