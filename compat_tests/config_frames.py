"""Configs of any resource, changed frame by frame: AdminClient names not all resources."""

from __future__ import annotations

from kafka.protocol.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

from compat_tests.brokers import Broker
from compat_tests.raw import Connection

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = 0, 1, 2


def alter(
    broker: Broker,
    name: str,
    *changes: tuple[str, int, str | None],
    resource_type: int = BROKER,
    validate_only: bool = False,
) -> int:
    """Change configs of a resource by (name, operation, value); return the error code."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
                name=each, config_operation=operation, value=value
            )
            for each, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(
        version=1, resources=[resource], validate_only=validate_only
    )
    with Connection(broker.bootstrap) as connection:
        (response,) = connection.call(request, IncrementalAlterConfigsResponse).responses
    return int(response.error_code)
