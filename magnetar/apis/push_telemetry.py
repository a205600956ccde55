"""PushTelemetry (API key 72): a client's own metrics, shown to Prometheus under kafka_client_*.

Version 0.

KIP-714. Served as GetTelemetrySubscriptions is. INVALID_RECORD for what is no MetricsData of
OpenTelemetry.
"""

from __future__ import annotations

from functools import partial

from logstore.disk.pools import Pool
from magnetar.apis.registry import handles
from magnetar.runtime.pushed_metrics import read_push
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from wire.records import Compression

#: Reads pushes, one at a time: clients come again with the next interval.
PUSHES = Pool("pushes", 1, 100, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


@handles(PushTelemetryRequest, versions="0")
async def push_telemetry(
    services: Services, request: PushTelemetryRequest, context: RequestContext
) -> PushTelemetryResponse:
    telemetry = services.telemetry
    assert telemetry is not None, "served only with it"
    client = await telemetry.admit(
        request.client_instance_id,
        request.subscription_id,
        request.compression_type,
        len(request.metrics),
        services.clock.steady_ms(),
        is_terminating=request.terminating,
    )
    # Only now: what is not admitted may have a hundred megabytes.
    data = bytes(request.metrics)
    codec = Compression(request.compression_type)
    try:
        samples, left_out = await PUSHES.run(partial(read_push, data, codec, telemetry.bytes_max))
    except WireError as garbage:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(garbage)) from None
    telemetry.keep(client, samples, left_out)
    return PushTelemetryResponse()
