"""Which topics, groups and transactional ids a request names, and which error a response says.

Both are read off the declared messages: no API needs code of its own here, but for FindCoordinator,
whose key is either, and for Fetch, whose session remembers what the request leaves out (KIP-227).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from magnetar.faults.rules import Named
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.message import Message, Struct
from wire.messages.fetch import FetchRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.schema import fields_of
from wire.types import ZERO_UUID

_TOPIC_FIELDS = frozenset({"topic", "topic_name", "topic_names", "subscribed_topic_names"})
_TOPIC_ID_FIELDS = frozenset({"topic_id"})
_GROUP_FIELDS = frozenset({"group_id", "group_ids", "groups", "groups_names"})
_TRANSACTION_FIELDS = frozenset({"transactional_id", "transactional_ids"})
_GROUP_KEY = 0
#: Before the fields of AddPartitionsToTxn that have moved.
_MOVED = "v3_and_below_"

#: A field's name, the name of the list around it, and a text or an id in it.
_Leaf = tuple[str, str, str | UUID]


def named_in(request: Message, services: Services) -> Named:
    """Return what a request names; topics by their names, also where it has ids."""
    if isinstance(request, FindCoordinatorRequest):
        return _sought(request)
    topics: set[str] = set()
    groups: set[str] = set()
    transactional_ids: set[str] = set()
    for field, around, value in _leaves(request, ""):
        name = field.removeprefix(_MOVED)
        if isinstance(value, UUID):
            if name in _TOPIC_ID_FIELDS:
                topics |= _topic_of(value, services)
        elif name in _TOPIC_FIELDS or (name == "name" and "topic" in around):
            topics.add(value)
        elif name in _GROUP_FIELDS:
            groups.add(value)
        elif name in _TRANSACTION_FIELDS:
            transactional_ids.add(value)
    if isinstance(request, FetchRequest):
        topics |= _remembered(request, services)
    topics.discard("")
    return Named(topics, groups, transactional_ids)


def error_in(response: Message | None) -> str | None:
    """Return the first error that a response says, by Kafka's name; None: it says none."""
    for code in () if response is None else _codes(response):
        if code:
            return ErrorCode(code).name
    return None


def _sought(request: FindCoordinatorRequest) -> Named:
    keys = {key for key in (request.key, *request.coordinator_keys) if key}
    if request.key_type == _GROUP_KEY:
        return Named(groups=keys)
    return Named(transactional_ids=keys)


def _remembered(request: FetchRequest, services: Services) -> set[str]:
    found: set[str] = set()
    for name, _ in services.fetch_sessions.remembered(request.session_id):
        found |= {name} if isinstance(name, str) else _topic_of(name, services)
    return found


def _topic_of(topic_id: UUID, services: Services) -> set[str]:
    topic = None if topic_id == ZERO_UUID else services.topics.by_id(topic_id)
    return set() if topic is None else {topic.name}


def _leaves(struct: Struct, around: str) -> Iterator[_Leaf]:
    for name, value in _fields(struct):
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Struct):
                yield from _leaves(each, name)
            elif isinstance(each, str | UUID):
                yield name, around, each


def _codes(struct: Struct) -> Iterator[int]:
    for name, value in _fields(struct):
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Struct):
                yield from _codes(each)


def _fields(struct: Struct) -> Iterable[tuple[str, Any]]:
    return ((field.name, getattr(struct, field.name)) for field in fields_of(type(struct)))
