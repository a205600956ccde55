"""ListPartitionReassignments (API key 46): the moves of replicas under way (KIP-455).

Version 0.

There are none: one node holds every replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.apis.registry import RequestContext, handles
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from magnetar.broker import Broker


@handles(ListPartitionReassignmentsRequest, versions="0")
async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
