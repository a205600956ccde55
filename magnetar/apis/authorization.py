"""What a client may do: what each API needs, the error of what is denied, and its log line.

    @handles(JoinGroupRequest, versions="0-9", needs=[Whole([READ], GROUP, "group_id")])

`Whole` is needed for the whole request, which is refused without it. `Each` is needed for each
thing in a list of the request: what is denied is refused as if it were alone, and the handler sees
the rest. Where Kafka leaves denied things out of an answer, or the thing is not in a list, the
handler asks `may` itself. Without an authorizer nothing of this runs.
Source: the table of operations in Kafka's documentation (security, authorization), KIP-11.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from logging import DEBUG
from types import CoroutineType
from typing import Any, NamedTuple

from magnetar.apis.mirror import Refuse
from magnetar.logging import get_logger, shown
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.large_messages import LARGE_MESSAGES
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, Resource
from magnetar.security.authorizer import Authorizer
from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import ZERO_UUID, Message
from wire.resource_type import ResourceType

_CODES = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_CONFIG_TYPES = frozenset(ResourceType)
#: The operations without an authorizer, as bits: all that the resource knows.
_EVERYTHING = {
    resource: sum(1 << operation for operation in operations)
    for resource, operations in OPERATIONS_OF.items()
}
#: The things of a list that one step looks at. A request with more is one that a thread decodes:
#: no other request of its connection is under way beside it.
_LOOKED_AT_ONCE = 2048
#: The same before a handler with turns: fewer, one piece of a turn.
_ASKED_AT_ONCE = 256
#: The denied things that are refused in the step that denies them: a refusal takes some 10 us.
_REFUSED_AT_ONCE = 256
_log = get_logger("kafka.authorizer.logger")

#: A kind of resource and the name of one.
Target = tuple[Resource, str]


class Whole(NamedTuple):
    """Needed for the whole request: one of `operations`, on what `field` names.

    Nothing is needed where the field is null, or not there in the request's version. Without a
    field the resource is the cluster.
    """

    operations: Sequence[Operation]
    resource: Resource
    field: str | None = None
    first_version: int = 0


class Each(NamedTuple):
    """Needed for each thing in the request's list `field`.

    A thing is a name, or has one as `name`, `topic` or by its `topic_id`; else `target` names it:
    None where the handler refuses the thing.
    `or_cluster`: this operation on the cluster will do as well.
    """

    operation: Operation
    resource: Resource
    field: str
    target: Callable[[Any], Target | None] | None = None
    or_cluster: Operation | None = None


Need = Whole | Each
Handler = Callable[[Services, Any, RequestContext], Any]


def may(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str = CLUSTER_NAME,
) -> bool:
    """Return whether the client may do this; a denial is not logged, a grant at debug only."""
    acls = services.acls
    if acls is None:
        return True
    is_allowed = acls.authorizer.allows(context.principal, context.host, operation, resource, name)
    if is_allowed and _log.level <= DEBUG:
        _log.debug("allowed", **_described(acls.authorizer, context, operation, resource, name))
    return is_allowed


def require(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str = CLUSTER_NAME,
) -> None:
    """Raise the resource's authorization error, and log it, unless the client may do this."""
    if not may(services, context, operation, resource, name):
        log_denied(services, context, operation, resource, name)
        raise denied(operation, resource, name)


def denied(operation: Operation, resource: Resource, name: str | None) -> KafkaError:
    """Return the error of a denied operation. Without a name it stands for many resources."""
    named = "" if name is None else f" {shown(name)}"
    return KafkaError(_CODES[resource], f"{operation.name} on {resource.name}{named} is denied")


def log_denied(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str,
    **fields: object,
) -> None:
    """Write the line of a denial: who, from where, what, and the rule that says so."""
    assert services.acls is not None, "nothing is denied without an authorizer"
    described = _described(services.acls.authorizer, context, operation, resource, name)
    _log.info("denied", **described, **fields)


def _described(
    authorizer: Authorizer,
    context: RequestContext,
    operation: Operation,
    resource: Resource,
    name: str,
) -> dict[str, str]:
    """Return the fields of a line about one decision: who, from where, what, and the rule."""
    decision = authorizer.decide(context.principal, context.host, operation, resource, name)
    if decision.rule is not None:
        rule = str(decision.rule)
    elif authorizer.is_super_user(context.principal):
        rule = "super.users"
    else:
        rule = "no ACL is about it" if decision.is_allowed else "no ACL allows it"
    return {
        "principal": str(context.principal),
        "host": context.host,
        "operation": operation.name,
        "resource": f"{resource.name}:LITERAL:{shown(name)}",
        "request": API_NAMES[context.api_key],
        "rule": rule,
    }


def allowed_operations(
    services: Services, context: RequestContext, resource: Resource, name: str = CLUSTER_NAME
) -> int:
    """Return the operations that the client may do: bit n is the operation of code n (KIP-430)."""
    if services.acls is None:
        return _EVERYTHING[resource]
    return sum(
        1 << operation
        for operation in OPERATIONS_OF[resource]
        if may(services, context, operation, resource, name)
    )


def cluster_operations(services: Services, context: RequestContext) -> int:
    """Return the operations on the cluster; none for a client that may not describe it."""
    if not may(services, context, Operation.DESCRIBE, Resource.CLUSTER):
        return 0
    return allowed_operations(services, context, Resource.CLUSTER)


def config_target(resource: Any) -> Target:
    """Return what a resource with configs is to an authorizer: brokers belong to the cluster."""
    match resource.resource_type:
        case ResourceType.TOPIC:
            return Resource.TOPIC, resource.resource_name
        case ResourceType.GROUP:
            return Resource.GROUP, resource.resource_name
    return Resource.CLUSTER, CLUSTER_NAME


def described_target(resource: Any) -> Target | None:
    """Return what DescribeConfigs needs rights on: as `config_target`, but None for a type that
    has no configs, which the handler refuses.
    """
    return config_target(resource) if resource.resource_type in _CONFIG_TYPES else None


class _Denied(NamedTuple):
    """Things of a request that are denied, and what makes the answer that refuses them.

    `number` counts the things and what they list, such as the partitions of a topic.
    """

    number: int
    refuse: Callable[[], Message | None]


def guarded(handler: Handler, refuse: Refuse, needs: Sequence[Need]) -> Handler:
    """Return `handler` behind its needs, for a broker with an authorizer: first those of the whole
    request.

    Where all is allowed and no list is long, the handler is called at once. Long lists are looked
    at in turns. So are short ones before a handler with turns, where anything is denied. Where much
    is denied, a thread refuses it.
    """
    has_turns = iscoroutinefunction(handler)
    at_once = _ASKED_AT_ONCE if has_turns else _LOOKED_AT_ONCE
    lists = [need for need in needs if isinstance(need, Each)]
    wholes = [need for need in needs if isinstance(need, Whole)]

    def handle(services: Services, request: Any, context: RequestContext) -> Any:
        for whole in wholes:
            _require_whole(services, request, context, whole)
        if _may_everything(services, request, context, lists, at_once):
            return handler(services, request, context)
        if has_turns or any(map(partial(_is_long, request), lists)):
            return handle_in_turns(services, request, context)
        denied: list[_Denied] = []
        for need in lists:
            split = _Split(services, context, need)
            split.add(_things(request, need))
            request = split.end(request, refuse, denied)
        handled = handler(services, request, context)
        return _joined(handled, denied) if denied else handled

    async def handle_in_turns(services: Services, request: Any, context: RequestContext) -> Any:
        denied: list[_Denied] = []
        for need in lists:
            split = _Split(services, context, need)
            async for things in services.turns.pieces(_things(request, need)):
                split.add(things)
            request = split.end(request, refuse, denied)
        handled = handler(services, request, context)
        if denied:
            return await _joined_later(handled, denied)
        return await handled if isinstance(handled, CoroutineType) else handled

    return handle


def _require_whole(services: Services, request: Any, context: RequestContext, need: Whole) -> None:
    if context.version < need.first_version:
        return
    name = CLUSTER_NAME if need.field is None else getattr(request, need.field)
    if name is None:
        return
    if not any(may(services, context, one, need.resource, name) for one in need.operations):
        require(services, context, need.operations[0], need.resource, name)


def _things(request: Any, need: Each) -> Sequence[Any]:
    return getattr(request, need.field) or ()


def _is_long(request: Any, need: Each) -> bool:
    return len(_things(request, need)) > _LOOKED_AT_ONCE


class _Split:
    """Divides a list into what is allowed and what is denied, a piece at a time."""

    __slots__ = ("_allowed", "_context", "_kinds", "_need", "_services")

    def __init__(self, services: Services, context: RequestContext, need: Each) -> None:
        self._services = services
        self._context = context
        self._need = need
        self._allowed: list[Any] = []
        #: What is denied, by its kind of resource, and the first name of each kind.
        self._kinds: dict[Resource, tuple[str, list[Any]]] = {}

    def add(self, things: Sequence[Any]) -> None:
        """Look at the next things of the list."""
        services, context, need = self._services, self._context, self._need
        may_otherwise = need.or_cluster
        if _may_all(services, things, context, need) or (
            may_otherwise and may(services, context, may_otherwise, Resource.CLUSTER)
        ):
            self._allowed += things
            return
        for thing in things:
            target = _target(services, need, thing)
            if target is None or may(services, context, need.operation, *target):
                self._allowed.append(thing)
            else:
                self._kinds.setdefault(target[0], (target[1], []))[1].append(thing)

    def end(self, request: Any, refuse: Refuse, denied_things: list[_Denied]) -> Any:
        """Return the request without what is denied; add each kind of that."""
        services, context, need = self._services, self._context, self._need
        if not self._kinds:
            return request
        for resource, (name, things) in self._kinds.items():
            # One line for all of them: a request may name more than a log should hold.
            log_denied(services, context, need.operation, resource, name, denied_count=len(things))
            error = denied(need.operation, resource, name if len(things) == 1 else None)
            named = _with_list(request, need.field, things)
            denied_things.append(
                _Denied(sum(map(_size, things)), partial(refuse, named, context.version, error))
            )
        return _with_list(request, need.field, self._allowed)


def _may_everything(
    services: Services,
    request: Any,
    context: RequestContext,
    lists: Sequence[Each],
    at_once: int,
) -> bool:
    """Return whether nothing in these lists is denied, and none has more than `at_once` things."""
    for need in lists:
        things = _things(request, need)
        if len(things) > at_once or not _may_all(services, things, context, need):
            return False
    return True


def _may_all(
    services: Services, things: Sequence[Any], context: RequestContext, need: Each
) -> bool:
    """Return whether none of these is denied: the usual case, looked at with few calls."""
    assert services.acls is not None, "needs are put before a handler with an authorizer"
    if _log.level <= DEBUG:
        # Each grant has its line.
        return False
    allows, principal, host = services.acls.authorizer.allows, context.principal, context.host
    for thing in things:
        target = _target(services, need, thing)
        if target is not None and not allows(principal, host, need.operation, *target):
            return False
    return True


def _with_list(request: Any, field: str, things: list[Any]) -> Any:
    changed = copy.copy(request)
    setattr(changed, field, things)
    return changed


def _target(services: Services, need: Each, thing: Any) -> Target | None:
    """Return what a thing is; None where the handler says why it is refused: for a topic id that
    is unknown, and where `target` names nothing.
    """
    if need.target is not None:
        return need.target(thing)
    if isinstance(thing, str):
        return need.resource, thing
    named = _NAMED.get(type(thing)) or _look_at(thing)
    if named.may_have_id:
        topic_id = thing.topic_id
        # Both are looked at: `is` is quick, and enough where the request's version has no ids.
        if topic_id is not ZERO_UUID and topic_id != ZERO_UUID:
            topic = services.topics.by_id(topic_id)
            return None if topic is None else (need.resource, topic.name)
    return need.resource, getattr(thing, named.field)


class _Named(NamedTuple):
    """How the things of one kind are named: by which field, and whether by a topic id too."""

    field: str
    may_have_id: bool
    #: The lists within a thing: the partitions of a topic.
    lists: tuple[str, ...]


#: By the class of a thing. Bounded by the number of messages.
_NAMED: dict[type, _Named] = {}


def _look_at(thing: Any) -> _Named:
    field = "topic" if hasattr(thing, "topic") else "name"
    # An empty instance shows which fields are lists; in `thing` a list may be null.
    empty = type(thing)()
    lists = tuple(name for name in empty._declared if isinstance(getattr(empty, name), list))
    named = _NAMED[type(thing)] = _Named(field, hasattr(thing, "topic_id"), lists)
    return named


def _size(thing: Any) -> int:
    """Return how much there is to refuse of a thing: itself, and what it lists."""
    if isinstance(thing, str):
        return 1
    named = _NAMED.get(type(thing)) or _look_at(thing)
    return 1 + sum(len(getattr(thing, name) or ()) for name in named.lists)


def _joined(handled: Any, denied: Sequence[_Denied]) -> Any:
    """Add to the answer of a handler the answers to what is denied.

    The handler has begun: a request that appends does so in the order of its arrival.
    """
    if isinstance(handled, CoroutineType) or _are_many(denied):
        return _joined_later(handled, denied)
    return _with_refusals(handled, [each.refuse() for each in denied])


async def _joined_later(handled: Any, denied: Sequence[_Denied]) -> Any:
    """Do as `_joined`, where many things may be denied or the handler goes on in a task."""
    if isinstance(handled, CoroutineType):
        handled = await handled
    if not _are_many(denied):
        return _with_refusals(handled, [each.refuse() for each in denied])
    try:
        refusals = [await LARGE_MESSAGES.run(each.refuse) for each in denied]
    except asyncio.CancelledError:
        if isinstance(handled, DelayedResponse):
            handled.cancel()
        raise
    return _with_refusals(handled, refusals)


def _are_many(denied: Sequence[_Denied]) -> bool:
    return sum(each.number for each in denied) > _REFUSED_AT_ONCE


def _with_refusals(handled: Any, refusals: Iterable[Message | None]) -> Any:
    if isinstance(handled, DelayedResponse):
        make = handled.make
        handled.make = lambda is_late: _add(make(is_late), refusals)
        return handled
    return _add(handled, refusals)


def _add(response: Message | None, refusals: Iterable[Message | None]) -> Message | None:
    for refusal in refusals:
        assert response is not None, "an API without an answer names nothing in a list"
        assert refusal is not None, "an API without an answer names nothing in a list"
        for name in type(refusal)._declared:
            value = getattr(refusal, name)
            if isinstance(value, list) and value:
                setattr(response, name, [*getattr(response, name), *value])
    return response
