"""RenewDelegationToken (API key 39): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, int16, int32, int64


class RenewDelegationTokenRequest(Message, api_key=39, versions="1-2", flexible="2+"):
    hmac: bytes = b""
    renew_period_ms: int64 = 0


class RenewDelegationTokenResponse(Message, api_key=39, versions="1-2", flexible="2+"):
    error_code: int16 = 0
    expiry_timestamp_ms: int64 = 0
    throttle_time_ms: int32 = 0
