"""Settings of topics, brokers and groups: their values and sources, and changes of them.

Source: KIP-133, KIP-226 (sources), KIP-339 (incremental changes), KIP-1142 (listing resources).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from magnetar.client.cluster import Client
from magnetar.client.errors import ClientError, check
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from wire.resource_type import ResourceType

#: Older versions have no such field, and a field that is set cannot be left out in silence
#: (KIP-569).
_DOCUMENTATION_SINCE = 3
#: Version 0 lists client metrics only (KIP-1142).
_TYPES_SINCE = 1
_SET, _DELETE = 0, 1
#: The codes of Kafka's ConfigSource, in words.
_SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "broker, at its start",
    5: "default",
    6: "broker's loggers",
    7: "client metrics",
    8: "group",
}
_DEFAULT = 5
#: The sources of settings of the resource itself, not of the level above.
_OWN_SOURCES = {
    ResourceType.TOPIC: (1,),
    ResourceType.BROKER: (2, 3),
    ResourceType.BROKER_LOGGER: (6,),
    ResourceType.CLIENT_METRICS: (7,),
    ResourceType.GROUP: (8,),
}


class Resource(NamedTuple):
    """What settings belong to. A broker without a name stands for the defaults of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.kind.replace('_', ' ')} {self.name}"

    @property
    def kind(self) -> str:
        """Kafka's word for the type: topic, broker, broker_logger, client_metrics, group."""
        return self.type.name.lower()

    @property
    def node_id(self) -> int | None:
        """The broker that answers for this resource; None: any."""
        is_brokers = self.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        return int(self.name) if is_brokers and self.name.isdigit() else None


@dataclass(frozen=True)
class Entry:
    """One setting of a resource. `value` is None if the setting is secret or not set."""

    name: str
    value: str | None
    source: str
    is_own: bool
    is_default: bool
    is_sensitive: bool
    is_read_only: bool
    documentation: str | None

    def to_json(self, resource: Resource) -> dict[str, Any]:
        return {
            "type": resource.kind,
            "resource": resource.name,
            "name": self.name,
            "value": self.value,
            "source": self.source,
            "default": self.is_default,
            "sensitive": self.is_sensitive,
            "read_only": self.is_read_only,
            "documentation": self.documentation,
        }


def describe_configs(
    client: Client,
    resources: Sequence[Resource],
    names: Sequence[str] | None = None,
) -> Iterator[tuple[Resource, list[Entry]]]:
    """Yield each resource with its settings (`names` None: all of them), by name."""
    # A broker answers for its own settings only; Kafka refuses the question for another node's.
    # Topics and groups are the same everywhere.
    by_node: dict[int | None, list[Resource]] = {}
    for resource in resources:
        by_node.setdefault(resource.node_id, []).append(resource)
    for node_id, asked in by_node.items():
        version = client.version_for(DescribeConfigsRequest)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list(names),
                )
                for resource in asked
            ],
            include_documentation=version >= _DOCUMENTATION_SINCE,
        )
        response = client.call(request, DescribeConfigsResponse, node_id=node_id)
        for result in response.results:
            resource = Resource(ResourceType(result.resource_type), result.resource_name)
            check(result.error_code, str(resource), result.error_message)
            entries = [_entry(resource, each) for each in result.configs]
            yield resource, sorted(entries, key=lambda entry: entry.name)


def check_names(client: Client, resource: Resource, names: Sequence[str]) -> None:
    """Raise ClientError for a name that is no setting of this topic or group.

    Brokers remove settings without a look at their names, so a mistyped name would be success.
    """
    # Kafka describes no more of a broker than what it has, so nothing is known of other names.
    if not names or resource.type not in (ResourceType.TOPIC, ResourceType.GROUP):
        return
    ((_, entries),) = describe_configs(client, [resource], names)
    for name in sorted({*names} - {entry.name for entry in entries}):
        raise ClientError(
            f"{resource} has no setting {name}. `magnetar configs list` shows its settings."
        )


def _entry(resource: Resource, described: DescribeConfigsResourceResult) -> Entry:
    return Entry(
        name=described.name,
        value=described.value,
        # A source that a later Kafka has added must not hide the value.
        source=_SOURCES.get(described.config_source, "unknown"),
        is_own=described.config_source in _OWN_SOURCES[resource.type],
        is_default=described.config_source == _DEFAULT,
        is_sensitive=described.is_sensitive,
        is_read_only=described.read_only,
        documentation=described.documentation,
    )


def change_configs(
    client: Client,
    resource: Resource,
    set_to: Mapping[str, str],
    unset: Sequence[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set and unset settings of a resource: all of them, or none and Refused."""
    changes = [
        AlterableConfig(name=name, config_operation=_SET, value=value)
        for name, value in set_to.items()
    ]
    changes += [AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in unset]
    altered = AlterConfigsResource(
        resource_type=resource.type, resource_name=resource.name, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only)
    answer = client.call(request, IncrementalAlterConfigsResponse, node_id=resource.node_id)
    for result in answer.responses:
        check(result.error_code, str(resource), result.error_message)


def list_resources(client: Client) -> list[Resource]:
    """Return every resource that has settings of its own, by type and name."""
    response = client.call(
        ListConfigResourcesRequest(), ListConfigResourcesResponse, at_least=_TYPES_SINCE
    )
    check(response.error_code, "listing the resources that have settings")
    # A later Kafka may list types that this client cannot ask about.
    known = set(ResourceType)
    return sorted(
        Resource(ResourceType(each.resource_type), each.resource_name)
        for each in response.config_resources
        if each.resource_type in known
    )
