"""What the broker tells of itself besides its own metrics, and what clients may tell of theirs."""

from __future__ import annotations

from magnetar.config.setting import Config, integer, string, words


class ObservingConfig(Config):
    """The names of metrics, and the bound of what a client pushes (KIP-714)."""

    metrics_names = words(
        ["kafka_exporter"],
        one_of=("kafka_exporter", "jmx"),
        since="magnetar 0.1",
        doc="Under which names GET /metrics tells what others tell too, beside magnetar_*:"
        " kafka_exporter's, or those that Strimzi's rules make of Kafka's JMX beans. See"
        " metrics.md.",
    )
    telemetry_max_bytes = integer(
        1048576,
        minimum=1,
        since="3.7",
        doc="Most compressed bytes that a client may push of its own metrics at once. Clients are"
        " asked for them where metrics.listen is set.",
    )
    traces_exporter = string(
        "none",
        one_of=("none", "otlp"),
        since="magnetar 0.1",
        doc="Where spans of requests go: nowhere, or by OTLP over HTTP to the collector that the"
        " OTEL_* variables name. Needs pip install 'magnetar[otel]'. See tracing.md.",
    )
