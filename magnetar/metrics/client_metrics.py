"""What clients have told of their own metrics, as families of Prometheus: `kafka_client_*`."""

from __future__ import annotations

import asyncio

from prometheus_client.core import Metric

from magnetar.metrics.samples import plain
from magnetar.runtime.telemetry import ClientTelemetry, ToldClient

_HELP = "Told by clients (KIP-714)."


async def told_by_clients(telemetry: ClientTelemetry | None, now_ms: int) -> list[Metric]:
    """Return the families of every name that a client has told, labelled with the client.

    The event loop has its turn after each client: the samples of all take it a tenth of a second.
    """
    told: dict[str, Metric] = {}
    for client in () if telemetry is None else [*telemetry.told(now_ms)]:
        await asyncio.sleep(0)
        own = _labels(client)
        for sample in client.samples:
            family = told.get(sample.name)
            if family is None:
                family = told[sample.name] = Metric(sample.name, _HELP, "unknown")
            # The client's own names last: what a sample says must not stand for another client.
            family.add_sample(sample.name, {**dict(sample.labels), **own}, sample.value)
    client_count = 0 if telemetry is None else telemetry.client_count
    left_out = 0 if telemetry is None else telemetry.left_out
    return [
        *told.values(),
        plain("magnetar_telemetry_clients", client_count),
        plain("magnetar_telemetry_left_out_total", left_out),
    ]


def _labels(client: ToldClient) -> dict[str, str]:
    return {
        "client_id": client.attributes["client_id"],
        "client_instance_id": str(client.instance_id),
        "client_software_name": client.attributes["client_software_name"],
        "client_software_version": client.attributes["client_software_version"],
    }
