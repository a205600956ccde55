"""GetTelemetrySubscriptions (API key 71): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, int8, int16, int32


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions="0", flexible="0+"):
    client_instance_id: UUID = ZERO_UUID


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int32 = 0
    accepted_compression_types: list[int8] = []
    push_interval_ms: int32 = 0
    telemetry_max_bytes: int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = []
