"""The metrics that clients push (KIP-714): OpenTelemetry's protobuf, read into bounded samples.

Nothing that a client sends is trusted: names and labels are cut to what Prometheus takes, and
each push has a bound of bytes, of messages that are looked at, and of samples. The library parses
single metrics only. It keeps the interpreter's lock while it parses, and makes 70 bytes of two: a
kilobyte that inflates to five million empty messages would stop the event loop for half a second.
Only sums and gauges are read: Kafka's clients send no others.

The fields that lead to the metrics (opentelemetry.proto.metrics.v1), all of them messages:

    MetricsData      1  resource_metrics, repeated
    ResourceMetrics  1  resource          2  scope_metrics, repeated
    ScopeMetrics     2  metrics, repeated
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from wire.errors import WireError
from wire.records import Compression
from wire.records.compression import decompress

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

#: Most samples of one client, and most labels of a sample besides those that name the client.
SAMPLES_MAX, LABELS_MAX = 500, 8
#: The most messages of a push that are looked at: those of 500 metrics, many times over.
FIELDS_MAX = 20_000
#: A larger metric is left out. The library parses so much in 5 ms at worst.
METRIC_BYTES_MAX = 128 * 1024
#: Attributes that are looked at for the labels of one sample.
_ATTRIBUTES_MAX = 64
_NAME_CHARACTERS_MAX, _VALUE_CHARACTERS_MAX = 120, 100
#: A compressed push may inflate so far.
_GROWTH_MAX = 10
_PREFIX = "kafka_client_"
_KAFKAS = "org.apache.kafka."
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]+")
#: Attributes of the client as a whole that every sample takes as labels.
_OF_CLIENT = ("client_rack", "group_id", "transactional_id")
#: The kinds of an attribute's value that make a label. The text of a list or a map could be huge.
_LABELLED = ("string_value", "bool_value", "int_value", "double_value")

# Types of a field on the wire, and the bytes of those that have a fixed size.
_VARINT, _MESSAGE = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


class Sample(NamedTuple):
    """One value that a client told, by the name and the labels that Prometheus shows."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def read_push(data: bytes, codec: Compression, bytes_max: int) -> tuple[list[Sample], int]:
    """Return the samples of a push, and how many were left out. Raises WireError for garbage.

    A metric that is too large counts as one sample, and so does all that lies behind FIELDS_MAX.
    The library takes 50 ms to import, and a push of a megabyte a few: this belongs in a thread.
    """
    from google.protobuf.message import DecodeError

    plain = bytes(decompress(codec, data, _GROWTH_MAX * bytes_max))
    found: list[Sample] = []
    left_out = 0
    try:
        for metric, of_client in _metrics(_Fields(plain)):
            if metric is None:
                left_out += 1
                continue
            points = metric.gauge.data_points or metric.sum.data_points
            room = SAMPLES_MAX - len(found)
            found += [_sample(metric.name, point, of_client) for point in points[:room]]
            left_out += max(len(points) - room, 0)
    except DecodeError as error:
        raise WireError(f"the metrics are no MetricsData: {error}") from None
    return found, left_out


def metric_name(told: str) -> str:
    """Return the name under which Prometheus shows what a client calls so."""
    return f"{_PREFIX}{_legal(told.removeprefix(_KAFKAS)).strip('_')}"


class _Fields:
    """Walks through the messages in messages, FIELDS_MAX fields at most."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.is_over = False
        self._left = FIELDS_MAX

    def of(self, message: memoryview, number: int) -> Iterator[memoryview]:
        """Yield the messages that a message has in the field of a number. Raises WireError."""
        position = 0
        while position < len(message):
            self._left -= 1
            if self._left < 0:
                self.is_over = True
                return
            tag, position = _varint(message, position)
            wire_type = tag & 7
            if wire_type == _VARINT:
                _, position = _varint(message, position)
                continue
            if wire_type == _MESSAGE:
                size, position = _varint(message, position)
            elif (size := _FIXED_BYTES.get(wire_type, -1)) < 0:
                raise WireError(f"the metrics are no MetricsData: a field of type {wire_type}")
            end = position + size
            if end > len(message):
                raise WireError("the metrics are no MetricsData: they are cut short")
            if wire_type == _MESSAGE and tag >> 3 == number:
                yield message[position:end]
            position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position`, and where it ends. Raises WireError."""
    value = 0
    for shift, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    raise WireError("the metrics are no MetricsData: a number does not end")


def _metrics(fields: _Fields) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield each metric with the labels of its client; None for one that is left out.

    Raises WireError, and the library's DecodeError.
    """
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

    for resource_metrics in fields.of(fields.data, 1):
        of_client = _labels_of_client(fields, resource_metrics)
        for scope_metrics in fields.of(resource_metrics, 2):
            for metric in fields.of(scope_metrics, 2):
                is_large = len(metric) > METRIC_BYTES_MAX
                yield None if is_large else Metric.FromString(bytes(metric)), of_client
    if fields.is_over:
        yield None, {}


def _labels_of_client(fields: _Fields, resource_metrics: memoryview) -> dict[str, str]:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    labels: dict[str, str] = {}
    for resource in fields.of(resource_metrics, 1):
        if len(resource) <= METRIC_BYTES_MAX:
            attributes = islice(Resource.FromString(bytes(resource)).attributes, _ATTRIBUTES_MAX)
            labels |= _labels(each for each in attributes if each.key in _OF_CLIENT)
    return labels


def _sample(name: str, point: Any, of_client: dict[str, str]) -> Sample:
    labels = {**_labels(islice(point.attributes, _ATTRIBUTES_MAX)), **of_client}
    is_whole = point.WhichOneof("value") == "as_int"
    value = float(point.as_int if is_whole else point.as_double)
    return Sample(metric_name(name), tuple(sorted(labels.items())), value)


def _labels(attributes: Iterable[KeyValue]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for attribute in attributes:
        name = _legal(attribute.key)
        kind = attribute.value.WhichOneof("value")
        # Prometheus keeps names that begin with two underscores for itself.
        if kind not in _LABELLED or not name or name[0].isdigit() or name.startswith("__"):
            continue
        labels[name] = str(getattr(attribute.value, kind))[:_VALUE_CHARACTERS_MAX]
        if len(labels) == LABELS_MAX:
            break
    return labels


def _legal(told: str) -> str:
    """Return the text as a name of Prometheus; cut first, since a client may send a megabyte."""
    return _ILLEGAL.sub("_", told[:_NAME_CHARACTERS_MAX])
