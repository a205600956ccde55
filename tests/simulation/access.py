"""Who may do what in a secured history, and the judge of answers to those who may not. Pure.

A client that has not logged in is answered nothing but ApiVersions and its login. The answer to one
without the right says nothing that its request did not say. A right counts from when it was asked
for at the earliest, and until the answer to its removal at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from magnetar.security.acls import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from magnetar.storage.acls import STANDARD_AUTHORIZER
from tests.simulation.clients.connection import Login
from tests.simulation.clients.forbidden import VALUE, Forbidden
from tests.simulation.observations import Observations
from wire.error_code import ErrorCode
from wire.message import ZERO_UUID, Message, Struct
from wire.messages import fetch, produce
from wire.messages.create_acls import AclCreation

ADMIN, APP = Login("admin", "admin's"), Login("app", "app's")
#: Logs in as the others do; an administrator grants and takes away what it may do.
GUEST = Login("guest", "guest's")
#: Logs in by SCRAM, by credentials of the catalog, and may do nothing.
NO_ONE = Login("no-one", "no-one's")
#: The topic that guests may read, or write to, for a while. Few write to its last partition.
GUARDED, GUARDED_PARTITIONS = "guarded", 2
#: An answer is on its way for less, unless its reader is slow. What leaves the broker later than
#: the answer to the removal of a right may not rest on the right any more.
ANSWER_S = 0.25

_USERS = " ".join(f'user_{one.user}="{one.password}"' for one in (ADMIN, APP, GUEST))
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://broker.simulated:9092",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {_USERS};"
    ),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN.user}",
}


def allowing(
    user: str,
    operation: Operation,
    resource: Resource,
    name: str = "*",
    pattern: Pattern = Pattern.LITERAL,
) -> AclCreation:
    """Return a rule that allows a user something."""
    return AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def rights_of_clients() -> list[AclCreation]:
    """Return the rules that the ordinary clients of a history need."""
    kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    return [
        *(allowing(APP.user, Operation.ALL, kind) for kind in kinds),
        allowing(APP.user, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME),
    ]


@dataclass(slots=True)
class Change:
    """A right was granted, or taken away: when it was asked for first, and when answered."""

    is_granted: bool
    asked_s: float
    told_s: float = float("inf")


@dataclass
class Right:
    """The changes of one right, in their order. Each is asked for until it is answered."""

    changes: list[Change] = field(default_factory=list)

    def may_have_held(self, first_s: float, last_s: float) -> bool:
        """Return whether the right may have been there at a moment between these."""
        return any(
            one.is_granted and one.asked_s <= last_s and self._ends(index, "told_s") >= first_s
            for index, one in enumerate(self.changes)
        )

    def surely_held(self, first_s: float, last_s: float) -> bool:
        """Return whether the right was there all the time between these moments."""
        return any(
            one.is_granted and one.told_s <= first_s and self._ends(index, "asked_s") > last_s
            for index, one in enumerate(self.changes)
        )

    def _ends(self, index: int, moment: str) -> float:
        following = self.changes[index + 1 : index + 2]
        ends_s: float = getattr(following[0], moment) if following else float("inf")
        return ends_s


@dataclass
class Rights:
    """What a guest may do with the guarded topic."""

    read: Right = field(default_factory=Right)
    write: Right = field(default_factory=Right)

    def enough_for(self, api_key: int) -> tuple[Right, ...]:
        """Return the rights of which one will do. Each of them lets the topic be described."""
        if api_key == produce.ProduceRequest.api_key:
            return (self.write,)
        return (self.read,) if api_key == fetch.FetchRequest.api_key else (self.read, self.write)


#: What every client may know, and the answer to any request has.
_PUBLIC = frozenset(
    {
        "brokers",
        "cluster_id",
        "controller_id",
        "error_code",
        "error_message",
        "partition_error_code",
        "node_endpoints",
        "session_id",
        "throttle_time_ms",
    }
)


def _leaves(struct: Struct, *, is_answer: bool) -> Iterator[tuple[str, object]]:
    for name in type(struct)._declared:
        value = getattr(struct, name, None)
        if is_answer and name in _PUBLIC:
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                yield from _leaves(one, is_answer=is_answer)
            else:
                yield name, one


def _codes(struct: Struct) -> Iterator[int]:
    for name in type(struct)._declared:
        value = getattr(struct, name, None)
        if name.endswith("error_code") and isinstance(value, int):
            yield value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                yield from _codes(one)


def codes_of(answer: Message) -> set[ErrorCode]:
    """Return the errors in an answer."""
    return {ErrorCode(code) for code in _codes(answer) if code}


def told(request: Message, answer: Message, known: Iterable[tuple[str, object]] = ()) -> list[str]:
    """Return what an answer says, beside errors, that its request has not said.

    `known`: fields and values that an earlier request has said.
    """
    said = {_plain(value) for _, value in _leaves(request, is_answer=False)}
    before = set(known)
    return [
        f"{name}={plain!r}"
        for name, value in _leaves(answer, is_answer=True)
        if (plain := _plain(value)) not in said
        and (name, plain) not in before
        and not _is_nothing(plain)
    ]


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _is_nothing(value: object) -> bool:
    if isinstance(value, UUID):
        return value == ZERO_UUID
    return not value or (isinstance(value, int) and value < 0)


def beyond_rights(asked: Forbidden, answer: Message) -> str:
    """Return what is wrong with an answer to a client that has no right; empty: nothing."""
    codes = codes_of(answer)
    expected = {asked.code} - {ErrorCode.NONE}
    if codes != expected:
        shown = ", ".join(sorted(code.name for code in codes)) or "no error"
        return f"{shown} in place of {asked.code.name}"
    if found := told(asked.request, answer):
        return f"it was told {', '.join(found)}"
    return ""


#: Why the broker closes connections of those who try to get in.
CLOSED = ("a request of API key ", "Authentication failed")


def effects(seen: Observations, topics: set[str]) -> list[str]:
    """Return what a client has done that had no right to. `topics`: those of the history."""
    values = {
        one.value
        for records in (*(each.records for each in seen.fetched), *seen.final.values())
        for one in records
    }
    read = ["access: a record of an intruder was read"] if VALUE.decode() in values else []
    refused = sorted(value for value in seen.refused if value in values)
    strange = sorted(name for name in seen.topics - topics if not name.startswith("__"))
    read += [f"access: {value} was refused, and was read" for value in refused]
    return [*read, *(f"access: a topic was made: {name}" for name in strange)]
