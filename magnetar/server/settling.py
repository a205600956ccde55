"""Requests held while what they are for moves between nodes.

The dispatcher puts this around the handlers of a node whose partitions move. Everything is as
without, but while a partition is on its way (`magnetar.storage.moving_partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any

from coordinator.transactions.metadata import TopicPartition
from magnetar.apis.partitions_named import Partitions
from magnetar.apis.registry import Handled
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.message import Message

#: A request that has waited so long is told who leads now, or that a shard is being loaded.
#: Clients allow at least twice as much.
WAIT_S = 5.0

AnyHandler = Callable[[Services, Any, RequestContext], Handled]


def settled(partitions: Partitions, handler: AnyHandler) -> AnyHandler:
    """Return `handler` for a node whose partitions move; `partitions` finds those of a request."""

    def handle(services: Services, request: Message, context: RequestContext) -> Handled:
        moving = services.topics.led.moving
        if moving.are_any and (held := moving.held({*partitions(services, request)})):
            return go_on(held, services, request, context)
        return handler(services, request, context)

    async def go_on(
        held: Sequence[TopicPartition],
        services: Services,
        request: Message,
        context: RequestContext,
    ) -> Any:
        await services.topics.led.moving.settled(held, WAIT_S)
        handled = handler(services, request, context)
        return await handled if isinstance(handled, CoroutineType) else handled

    return handle
