"""ListConfigResources (API key 74): the names of the resources that have configs (KIP-1142).

Versions 0-1.  0: client metrics only (KIP-714).  1: resources of the types asked for, or of all
types where the request names none.

Brokers are those that DescribeCluster names. A type that Kafka does not know is
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from magnetar.apis.authorization import Whole
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from wire.resource_type import ResourceType


@handles(
    ListConfigResourcesRequest,
    versions="0-1",
    needs=[Whole([Operation.DESCRIBE_CONFIGS], Resource.CLUSTER)],
)
async def list_config_resources(
    services: Services, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    types = set(request.resource_types) or set(ResourceType)
    if context.version == 0:
        types = {ResourceType.CLIENT_METRICS}
    unknown = types - set(ResourceType)
    if unknown:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown resource types {sorted(unknown)}")
    # Many such requests may come at once, and each lists all topics.
    await services.turns.begin()
    reached = services.nodes.addresses(context.connection.listener)
    brokers = [str(node_id) for node_id, *_ in reached]
    found = []
    if ResourceType.BROKER in types:
        found += [(name, ResourceType.BROKER) for name in brokers]
    if ResourceType.TOPIC in types:
        found += [(topic.name, ResourceType.TOPIC) for topic in services.topics.all()]
    if ResourceType.BROKER_LOGGER in types:
        found += [(name, ResourceType.BROKER_LOGGER) for name in brokers]
    for kind in (ResourceType.CLIENT_METRICS, ResourceType.GROUP):
        if kind in types:
            found += [(name, kind) for name in services.config_resources.stored.names(kind)]
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            async for some in services.turns.pieces(found)
            for name, kind in some
        ]
    )
