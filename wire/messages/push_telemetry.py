"""PushTelemetry (API key 72): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, int8, int16, int32


class PushTelemetryRequest(Message, api_key=72, versions="0", flexible="0+"):
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int32 = 0
    terminating: bool = False
    compression_type: int8 = 0
    metrics: bytes = b""


class PushTelemetryResponse(Message, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
