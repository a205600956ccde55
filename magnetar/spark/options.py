"""The sink's options: names, checks, and the settings of librdkafka that follow from them. Pure.

Spark passes options in lower case, so `queryId` comes as `queryid`; settings of librdkafka are
lower case anyway. An unknown option is an error: a misspelt one could be a guarantee that is not
given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from magnetar.client.security import PLAINTEXT, BadSettings, Security, parse_security
from magnetar.spark.errors import BadOptions

_KAFKA = "kafka."
_SERVERS = "kafka.bootstrap.servers"
#: Name in lower case -> name as users write it.
_NAMES = {
    name.lower(): name
    for name in ("topic", "queryId", "batchId", "deliveryGuarantee", "brokerTimeoutMs")
}
#: Options of Spark itself, which the writer of a stream gets too, and one of its own sink, where it
#: changes nothing either: headers are written if there is a column of them.
_SPARKS = {"checkpointlocation", "includeheaders"}
#: Settings that follow from the guarantee, so the sink sets them.
_DECIDED = {"transactional.id", "enable.idempotence", "acks", "request.required.acks"}
#: Settings that librdkafka has by other names, or does not have.
_JAVAS = (
    "ssl.truststore.",
    "ssl.keystore.",
    "sasl.jaas.",
    "sasl.mechanisms",
    "sasl.login.",
    "sasl.oauthbearer.client.credentials.",
    "sasl.oauthbearer.header.",
    "sasl.oauthbearer.jwt.",
)
BROKER_TIMEOUT_MS = 120_000
_BROKER_TIMEOUT_MS_MAX = 3_600_000
QUERY_ID_BYTES_MAX = 512
#: The characters in a task's name: numbers, dots and a UUID.
_IN_NAMES_OF_TASKS = frozenset("0123456789abcdef.")


class Guarantee(StrEnum):
    """The option `deliveryGuarantee`: whether a repeated batch is written again."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write; every field was checked on its own."""

    bootstrap_servers: str
    topic: str | None = None
    """The topic of rows that name none."""
    query_id: str | None = None
    batch_id: int | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    broker_timeout_ms: int = BROKER_TIMEOUT_MS
    """How long the sink waits for a broker or a coordinator that is away."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings for librdkafka, without `kafka.`."""
    security: Security = PLAINTEXT


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write. BadOptions names the first bad one."""
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
    security = _security(client)
    return SinkOptions(
        bootstrap_servers=options[_SERVERS].strip(),
        topic=_stated(options, "topic"),
        query_id=_query_id(_stated(options, "queryId")),
        batch_id=_number(options, "batchId", 0, 2**63 - 1),
        guarantee=_guarantee(options),
        # 0 is refused: without any wait each write would fail, and no number stands for "for ever".
        broker_timeout_ms=_number(options, "brokerTimeoutMs", 1, _BROKER_TIMEOUT_MS_MAX)
        or BROKER_TIMEOUT_MS,
        client={
            **{name: value for name, value in client.items() if not name.startswith(_JAVAS)},
            **(security.for_librdkafka() if security != PLAINTEXT else {}),
        },
        security=security,
    )


def check_separated(query_id: str, separator: str) -> None:
    """Raise BadOptions unless the broker takes `query_id + separator + task` as the query's child.

    The broker splits a transactional id at the first separator.
    """
    # Else the first separator could lie in a task's name, and the broker would see another parent.
    if _IN_NAMES_OF_TASKS.issuperset(separator):
        raise BadOptions(
            f"the broker's joint.transactions.separator is {separator!r}, which names of tasks "
            "contain. Set another one."
        )
    # The whole text is searched: an id that ends with a part of the separator shifts its first
    # place.
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


def _number(options: Mapping[str, str], name: str, minimum: int, maximum: int) -> int | None:
    value = _stated(options, name)
    if value is None:
        return None
    # isdigit alone accepts `²` too, at which int fails.
    if not (value.isascii() and value.isdigit() and minimum <= int(value) <= maximum):
        raise BadOptions(
            f"the option {name} is {value!r}; it takes a number from {minimum} to {maximum}."
        )
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


def _security(client: Mapping[str, str]) -> Security:
    """Return how the sink connects, by Kafka's names or librdkafka's; refuse what is not theirs."""
    for name in sorted(client.keys() & _DECIDED):
        raise BadOptions(f"{_KAFKA}{name} is the sink's own to set.")
    try:
        return parse_security(client)
    except BadSettings as mistake:
        raise BadOptions(f"among the options {_KAFKA}*: {mistake}") from None
