"""What a node of a cluster may answer from memory: only while it leads, proven where that counts.

A node that was paused, or cut off from the database, may have been taken over without knowing it.
Whatever it appends then is fenced. What it reads from memory may be old:

- Fetch relies on the lease. Old means late here, not wrong: what a fetch returns was committed.
  While there is no lease it waits for one.
- What says where a group or a transaction stands, or where a log ends, waits for a commit that
  begins after the request has come. So the node led its partitions at some moment after that, and
  "a commit that has returned is visible" holds on every node.

Handlers of other brokers have nothing of this around them. Source: docs/cluster.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import wraps
from typing import Any, Protocol

from magnetar.apis.registry import Api, Handled
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message
from wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.describe_producers import DescribeProducersRequest
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.fetch import FetchRequest
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.list_offsets import ListOffsetsRequest
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.offset_fetch import OffsetFetchRequest
from wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest

#: APIs whose answers must not be old, and what a client is told that cannot have one now.
PROVEN: dict[type[Message], ErrorCode] = {
    ConsumerGroupDescribeRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    DescribeGroupsRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    DescribeProducersRequest: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    DescribeTransactionsRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ListGroupsRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ListOffsetsRequest: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ListTransactionsRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # Not COORDINATOR_NOT_AVAILABLE, after which librdkafka and Java's consumer never ask again.
    OffsetFetchRequest: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    OffsetForLeaderEpochRequest: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
#: APIs whose answers need a lease.
LEASED: dict[type[Message], ErrorCode] = {FetchRequest: ErrorCode.NOT_LEADER_OR_FOLLOWER}
#: How long a request waits for the database.
_PROOF_S = 5.0


class Lease(Protocol):
    """The logs of a node, as far as they say that it leads them."""

    @property
    def is_leased(self) -> bool:
        """Whether no other node can have taken over yet."""
        ...

    async def proven(self) -> None:
        """Return when a commit has returned that began after the call."""
        ...


def leased(apis: Mapping[int, Api], lease: Lease) -> dict[int, Api]:
    """Return those of the APIs whose handlers wait, with the wait around them."""
    return {
        each.api_key: _waiting(apis[each.api_key], lease, refusal, always=each in PROVEN)
        for each, refusal in {**PROVEN, **LEASED}.items()
    }


def _waiting(api: Api, lease: Lease, refusal: ErrorCode, *, always: bool) -> Api:
    handler = api.handler

    async def wait(
        services: Services, request: Any, context: RequestContext
    ) -> Message | DelayedResponse | None:
        try:
            async with asyncio.timeout(_PROOF_S):
                await lease.proven()
        except TimeoutError:
            # Clients ask for the leader then, and come again.
            raise KafkaError(
                refusal, "the database does not confirm that this node still leads"
            ) from None
        handled = handler(services, request, context)
        return await handled if isinstance(handled, Coroutine) else handled

    @wraps(handler)
    def handle(services: Services, request: Any, context: RequestContext) -> Handled:
        if always or not lease.is_leased:
            return wait(services, request, context)
        return handler(services, request, context)

    return api._replace(handler=handle)
