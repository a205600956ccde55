"""ListPartitionReassignments (API key 46): the moves of replicas under way (KIP-455).

Version 0.

There are none: a partition stays on its node while the nodes run.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(
    ListPartitionReassignmentsRequest,
    versions="0",
    needs=[Whole([Operation.DESCRIBE], Resource.CLUSTER)],
)
async def list_partition_reassignments(
    services: Services, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
