"""Configs of any resource, changed frame by frame: AdminClient does not know all kinds."""

from __future__ import annotations

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from compat_tests.brokers import Broker
from compat_tests.raw import Connection
from compat_tests.waiting import eventually

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = 0, 1, 2
#: Name, value and source of each.
Synonyms = list[tuple[str, str | None, int]]


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


def described(
    broker: Broker, resource_type: int, resource: str, *names: str
) -> list[DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult]:
    """Return what the broker tells of configs: of these names, or of all."""
    request = DescribeConfigsRequest(
        version=4,
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type,
                resource_name=resource,
                configuration_keys=list(names) or None,
            )
        ],
        include_synonyms=True,
        include_documentation=False,
    )
    with Connection(broker.bootstrap) as connection:
        (result,) = connection.call(request, DescribeConfigsResponse).results
    return list(result.configs)


def synonyms(broker: Broker, resource_type: int, resource: str, name: str) -> Synonyms:
    """Return name, value and source of all that apply to a config."""
    return [
        (each.name, each.value, each.source)
        for config in described(broker, resource_type, resource, name)
        for each in config.synonyms
    ]


def await_synonyms(
    broker: Broker, resource_type: int, resource: str, name: str, expected: Synonyms
) -> None:
    """Wait for what applies to a config: Kafka applies a change after its answer."""
    eventually(lambda: synonyms(broker, resource_type, resource, name) == expected)
