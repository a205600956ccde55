"""The metrics that clients push (KIP-714): OpenTelemetry's protobuf, read into bounded samples.

Nothing that a client sends is trusted: names and labels are cut to what Prometheus takes, and each
push has a bound of bytes and of samples. Only sums and gauges are read: Kafka's clients send no
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wire.errors import WireError
from wire.records import Compression
from wire.records.compression import decompress

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

#: Most samples of one client, and most labels of a sample besides those that name the client.
SAMPLES_MAX, LABELS_MAX = 500, 8
_NAME_CHARACTERS_MAX, _VALUE_CHARACTERS_MAX = 120, 100
#: A compressed push may inflate so far.
_GROWTH_MAX = 10
_PREFIX = "kafka_client_"
_KAFKAS = "org.apache.kafka."
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]+")
#: Attributes of the client as a whole that every sample takes as labels.
_OF_CLIENT = ("client_rack", "group_id", "transactional_id")


class Sample(NamedTuple):
    """One value that a client told, by the name and the labels that Prometheus shows."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def read_push(data: bytes, codec: Compression, bytes_max: int) -> tuple[list[Sample], int]:
    """Return the samples of a push, and how many were left out. Raises WireError for garbage.

    The library takes 50 ms to import, and a push of a megabyte a few: this belongs in a thread.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    plain = bytes(decompress(codec, data, _GROWTH_MAX * bytes_max))
    try:
        told = MetricsData.FromString(plain)
    except DecodeError as error:
        raise WireError(f"the metrics are no MetricsData: {error}") from None
    found: list[Sample] = []
    left_out = 0
    for sample in _samples(told):
        if len(found) < SAMPLES_MAX:
            found.append(sample)
        else:
            left_out += 1
    return found, left_out


def metric_name(told: str) -> str:
    """Return the name under which Prometheus shows what a client calls so."""
    name = _ILLEGAL.sub("_", told.removeprefix(_KAFKAS))
    return f"{_PREFIX}{name.strip('_')[:_NAME_CHARACTERS_MAX]}"


def _samples(told: Any) -> Iterator[Sample]:
    for resource in told.resource_metrics:
        whole = _labels(each for each in resource.resource.attributes if each.key in _OF_CLIENT)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.gauge.data_points or metric.sum.data_points
                for point in points:
                    labels = {**_labels(point.attributes), **whole}
                    is_whole = point.WhichOneof("value") == "as_int"
                    value = float(point.as_int if is_whole else point.as_double)
                    yield Sample(metric_name(metric.name), tuple(sorted(labels.items())), value)


def _labels(attributes: Iterable[KeyValue]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for attribute in attributes:
        name = _ILLEGAL.sub("_", attribute.key)[:_NAME_CHARACTERS_MAX]
        kind = attribute.value.WhichOneof("value")
        # Prometheus keeps names that begin with two underscores for itself.
        if kind is None or not name or name[0].isdigit() or name.startswith("__"):
            continue
        labels[name] = str(getattr(attribute.value, kind))[:_VALUE_CHARACTERS_MAX]
        if len(labels) == LABELS_MAX:
            break
    return labels
