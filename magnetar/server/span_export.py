"""Where spans go: by OTLP over HTTP to a collector, in batches, by a thread of the library.

The standard variables say the rest: OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318),
OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME (magnetar), OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_SDK_DISABLED. A collector that is away costs spans, and never
a request: the queue is bounded, and what has no room is dropped.
"""

from __future__ import annotations

import logging as standard_logging
import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from magnetar import __version__
from magnetar.logging import get_logger
from magnetar.server.tracing import Tracing

#: What a stop waits at most for the last spans to leave.
CLOSES_WITHIN_S = 5.0

_log = get_logger("traces")


class SpanExport:
    """Makes spans, and has the library send them to a collector."""

    def __init__(self, node_id: int) -> None:
        _log_as_ours().setLevel(standard_logging.WARNING)
        own = {
            SERVICE_NAME: "magnetar",
            "service.version": __version__,
            "service.instance.id": str(node_id),
        }
        # What the variables say wins.
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self.tracing = Tracing(self._provider.get_tracer("magnetar", __version__))

    def close(self) -> None:
        """Send what is left. Blocks, for `CLOSES_WITHIN_S` at most: the library would wait on."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSES_WITHIN_S)
        if closing.is_alive():
            _log.warning("the collector does not take the last spans: they are lost")
            # Its thread would try again, and log each failure.
            _log_as_ours().setLevel(standard_logging.CRITICAL)
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library's


class _ToOurLog(standard_logging.Handler):
    """Writes the library's lines into the broker's log."""

    def emit(self, record: standard_logging.LogRecord) -> None:
        _log.warning("spans are not exported", reason=record.getMessage())


def _log_as_ours() -> standard_logging.Logger:
    """Return the library's logger, whose lines go to the broker's log."""
    logger = standard_logging.getLogger("opentelemetry")
    logger.propagate = False
    if not any(isinstance(handler, _ToOurLog) for handler in logger.handlers):
        logger.addHandler(_ToOurLog())
    return logger
