"""The table of APIs: what the handlers declare, ApiVersions answers and the server serves.

    @handles(EndTxnRequest, versions="0-4")
    async def end_txn(
        services: Services, request: EndTxnRequest, context: RequestContext
    ) -> EndTxnResponse: ...

A handler returns its response, or None where none is to be sent. It raises `KafkaError` to refuse
the whole request: `refuse` turns that into the API's own shape. Its part before the first await
runs in the step in which the request arrives, in order of arrival. A handler without `async` does
all its work in that step; where its response waits for syncs, it returns a `DelayedResponse`.
Behind an authorizer it may begin later: where a list of the request is long, the list is looked up
first, in turns.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Coroutine, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from magnetar.apis.authorization import Need
from magnetar.apis.mirror import Refuse, mirror
from magnetar.apis.partitions_named import Partitions
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.message import Message, response_class_of

R = TypeVar("R", bound=Message)


#: What a handler returns: the response, a coroutine or a delayed response for it, or None.
Handled = Coroutine[Any, Any, Message | DelayedResponse | None] | Message | DelayedResponse | None
Handler = Callable[[Services, R, RequestContext], Handled]
#: A handler of whatever API.
AnyHandler = Callable[[Services, Any, RequestContext], Handled]


class Api(NamedTuple):
    """One API as it is served; both versions inclusive."""

    key: int
    name: str
    min_version: int
    max_version: int
    request_class: type[Message]
    response_class: type[Message]
    handler: AnyHandler
    refuse: Refuse
    needs: Sequence[Need]
    is_for: Partitions | None = None


_apis: dict[int, Api] = {}


def handles(
    request_class: type[R],
    *,
    versions: str,
    refuse: Refuse | None = None,
    needs: Sequence[Need] = (),
    is_for: Partitions | None = None,
    changes_catalog: bool = False,
) -> Callable[[Handler[R]], Handler[R]]:
    """Enter the handler of `request_class` into the table, for `versions` ("3-11" or "0").

    `refuse` says how a `KafkaError` is answered; left out, the response mirrors the request.
    `needs` are what a client must be allowed, where there is an authorizer. `is_for`: what the
    request waits for where that moves between nodes. `changes_catalog`: the request is answered
    once all nodes obey what it has changed.
    """
    first, _, last = versions.partition("-")
    response_class = response_class_of(request_class)

    def enter(handler: Handler[R]) -> Handler[R]:
        key = request_class.api_key
        # The later of two handlers would win silently, by the order of the imports.
        assert key not in _apis, f"two handlers for {request_class.__name__}"
        api = Api(
            key,
            request_class.__name__.removesuffix("Request"),
            int(first),
            int(last or first),
            request_class,
            response_class,
            _told_to_nodes(handler) if changes_catalog else handler,
            refuse or mirror(response_class),
            needs,
            is_for,
        )
        # A version without a message would pass ApiVersions and fail at its first request.
        assert request_class.min_version <= api.min_version
        assert api.min_version <= api.max_version <= request_class.max_version
        _apis[key] = api
        return handler

    return enter


def _told_to_nodes(handler: Handler[R]) -> Handler[R]:
    """Return a handler that begins with what other nodes have changed, and ends when all of them
    obey what it has changed itself."""

    @wraps(handler)
    async def handle(services: Services, request: R, context: RequestContext) -> Message | None:
        if services.nodes.is_alone:
            return await _awaited(handler(services, request, context))
        await services.nodes.see_changes()
        try:
            return await _awaited(handler(services, request, context))
        finally:
            # Also after a refusal: a part of the request may be done. And a client that hears that
            # another node was faster then finds here what that node has made.
            await services.nodes.tell_changes()
            await services.nodes.see_changes()

    return handle


async def _awaited(handled: Handled) -> Message | None:
    assert isinstance(handled, Coroutine), "what changes the catalog is no plain function"
    response = await handled
    assert not isinstance(response, DelayedResponse), "what changes the catalog waits itself"
    return response


@cache
def load_apis() -> dict[int, Api]:
    """Import every module of this package and return the table by API key."""
    package = import_module("magnetar.apis")
    for module in pkgutil.iter_modules(package.__path__, "magnetar.apis."):
        import_module(module.name)
    return _apis
