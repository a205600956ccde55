"""The sink's options: names, checks, and the settings of librdkafka that follow from them. Pure.

Spark hands options over in lower case, so `queryId` comes as `queryid`; settings of librdkafka
are lower case anyway. An option that nobody knows is an error: a misspelt one would be a guarantee
that nobody gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from magnetar.spark.errors import BadOptions

_KAFKA = "kafka."
_SERVERS = "kafka.bootstrap.servers"
#: Lower case -> as it is written.
_NAMES = {
    name.lower(): name
    for name in ("topic", "queryId", "batchId", "deliveryGuarantee", "brokerTimeoutMs")
}
#: Spark's own, of which the writer of a stream hears too.
_SPARKS = {"checkpointlocation"}
#: What the sink decides, by the guarantee that it gives.
_DECIDED = {"transactional.id", "enable.idempotence", "acks", "request.required.acks"}
#: With these a pass-through changes nothing: the broker has neither TLS nor SASL.
_PLAINTEXT = "plaintext"
BROKER_TIMEOUT_MS = 120_000
_BROKER_TIMEOUT_MS_MAX = 3_600_000
QUERY_ID_BYTES_MAX = 512
#: Numbers, dots and a UUID.
_IN_NAMES_OF_TASKS = frozenset("0123456789abcdef.")


class Guarantee(StrEnum):
    """What a repeated batch does: `deliveryGuarantee`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class SinkOptions:
    """What was asked for; every field was checked on its own."""

    bootstrap_servers: str
    topic: str | None = None
    """Where rows go that name no topic."""
    query_id: str | None = None
    batch_id: int | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    broker_timeout_ms: int = BROKER_TIMEOUT_MS
    """How long a broker, or a coordinator, that is away is waited for."""
    client: Mapping[str, str] = field(default_factory=dict)
    """What is passed through to librdkafka, without `kafka.`."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write. BadOptions names the first that will not do."""
    options = {name.lower(): value for name, value in given.items()}
    client = {
        name.removeprefix(_KAFKA): value
        for name, value in options.items()
        if name.startswith(_KAFKA) and name != _SERVERS
    }
    for name in sorted(options.keys() - _NAMES.keys() - _SPARKS):
        if not name.startswith(_KAFKA):
            raise BadOptions(
                f"unknown option {name!r}: there are {_SERVERS}, {', '.join(_NAMES.values())}, "
                f"and {_KAFKA}* for settings of the client."
            )
    if not options.get(_SERVERS, "").strip():
        raise BadOptions(f"the option {_SERVERS} is missing, as 127.0.0.1:9092.")
    _check_client(client)
    return SinkOptions(
        bootstrap_servers=options[_SERVERS].strip(),
        topic=_stated(options, "topic"),
        query_id=_query_id(_stated(options, "queryId")),
        batch_id=_number(options, "batchId", 2**63 - 1),
        guarantee=_guarantee(options),
        broker_timeout_ms=_number(options, "brokerTimeoutMs", _BROKER_TIMEOUT_MS_MAX)
        or BROKER_TIMEOUT_MS,
        client=client,
    )


def check_separated(query_id: str, separator: str) -> None:
    """Raise BadOptions unless the query is the parent of a task that is named after it, the
    broker's `separator` and the task."""
    if _IN_NAMES_OF_TASKS.issuperset(separator):
        raise BadOptions(
            f"the broker's joint.transactions.separator is {separator!r}, which names of tasks "
            "contain: it needs another one."
        )
    if f"{query_id}{separator}".index(separator) != len(query_id):
        raise BadOptions(
            f"the queryId {query_id!r} contains {separator!r}, or ends with a part of it, which "
            "parts a query from its tasks."
        )


def _stated(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name.lower())
    if value is not None and not value:
        raise BadOptions(f"the option {name} is empty.")
    return value


def _number(options: Mapping[str, str], name: str, maximum: int) -> int | None:
    value = _stated(options, name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and int(value) <= maximum):
        raise BadOptions(f"the option {name} is {value!r}; it takes a number from 0 to {maximum}.")
    return int(value)


def _guarantee(options: Mapping[str, str]) -> Guarantee:
    value = _stated(options, "deliveryGuarantee")
    if value is None:
        return Guarantee.EXACTLY_ONCE
    try:
        return Guarantee(value.lower())
    except ValueError:
        known = " or ".join(Guarantee)
        raise BadOptions(f"the option deliveryGuarantee is {value!r}; it takes {known}.") from None


def _query_id(value: str | None) -> str | None:
    if value is None:
        return None
    if not value.isprintable() or value != value.strip():
        raise BadOptions(f"the queryId {value!r} has outer spaces, or what cannot be printed.")
    if len(value.encode()) > QUERY_ID_BYTES_MAX:
        raise BadOptions(f"the queryId has more than {QUERY_ID_BYTES_MAX} bytes.")
    return value


def _check_client(client: Mapping[str, str]) -> None:
    for name in sorted(client.keys() & _DECIDED):
        raise BadOptions(f"{_KAFKA}{name} is the sink's own to set.")
    protocol = client.get("security.protocol", _PLAINTEXT)
    if protocol.lower() != _PLAINTEXT:
        raise BadOptions(
            f"{_KAFKA}security.protocol is {protocol}; magnetar speaks plain text, and so does "
            "this sink."
        )
