"""Requests held while what they are for moves between nodes.

The dispatcher puts this around the handlers of a node whose partitions move. While nothing moves
(`magnetar.storage.moving_partitions`) it changes nothing.
"""

from __future__ import annotations

from itertools import islice
from types import CoroutineType
from typing import Any

from coordinator.transactions.metadata import TopicPartition
from magnetar.apis.partitions_named import LOOKED_AT, Partitions
from magnetar.apis.registry import AnyHandler, Handled
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.storage.moving_partitions import MovingPartitions
from wire.message import Message

#: A request that has waited so long is told who leads now, or that a shard is being loaded.
#: Clients allow at least twice as much.
WAIT_S = 5.0


def settled(partitions: Partitions, handler: AnyHandler) -> AnyHandler:
    """Return `handler` for a node whose partitions move; `partitions` finds those of a request."""

    def handle(services: Services, request: Message, context: RequestContext) -> Handled:
        moving = services.topics.led.moving
        if moving.are_any:
            asked = {*islice(partitions(services, request), LOOKED_AT)}
            if moving.hold(asked):
                context.is_deferred = True
                return go_on(moving, asked, services, request, context)
        return handler(services, request, context)

    async def go_on(
        moving: MovingPartitions,
        asked: set[TopicPartition],
        services: Services,
        request: Message,
        context: RequestContext,
    ) -> Any:
        await moving.settled(asked, WAIT_S)
        context.now_ms = services.clock.now_ms()
        handled = handler(services, request, context)
        return await handled if isinstance(handled, CoroutineType) else handled

    return handle
