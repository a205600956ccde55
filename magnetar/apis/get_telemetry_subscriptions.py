"""GetTelemetrySubscriptions (API key 71): which of its metrics a client shall push, and how often.

Version 0.

KIP-714. Served where `metrics.listen` is set and the library that reads pushes is installed, as
Kafka serves it where a plugin receives metrics. A client is told to push sums as they are, not what
they grew by: Prometheus wants them so.
"""

from __future__ import annotations

from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.runtime.telemetry import CODECS
from wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


@handles(GetTelemetrySubscriptionsRequest, versions="0")
async def get_telemetry_subscriptions(
    services: Services, request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    telemetry = services.telemetry
    assert telemetry is not None, "served only with it"
    host, _, port = context.client_address.rpartition(":")
    software_name, software_version = context.connection.session.software
    attributes = {
        "client_id": context.client_id or "",
        "client_software_name": software_name,
        "client_software_version": software_version,
        "client_source_address": host,
        "client_source_port": port,
    }
    now_ms = services.clock.steady_ms()
    client = await telemetry.subscribe(request.client_instance_id, attributes, now_ms)
    subscription = client.subscription
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client.instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=list(CODECS),
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=telemetry.bytes_max,
        delta_temporality=False,
        requested_metrics=list(subscription.metrics),
    )
