"""What configs belong to: topics, groups, the broker, client metrics; how they change.

A resource says what it has of its own, what it refuses, and stores a new whole. The rules that all
of them have in common are in `magnetar.runtime.config_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from magnetar.config.client_metrics import ClientMetricsConfig, check_patterns
from magnetar.config.dynamic import find_setting
from magnetar.config.group import parse_group_configs
from magnetar.config.setting import ConfigType, InvalidValue
from magnetar.config.topic import TopicConfig, broker_default, parse_topic_configs
from magnetar.storage.broker_configs import EVERY_BROKER
from magnetar.storage.topic_names import check_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.storage.topics import Topic


class Resource(Protocol):
    """One thing with configs."""

    @property
    def texts(self) -> Mapping[str, str]:
        """What it has of its own."""
        ...

    def listed(self, name: str) -> str | None:
        """The list that APPEND and SUBTRACT begin with where there is none; None: no list."""
        ...

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        """Raise KafkaError unless these names may be set, and everything become `texts`."""
        ...

    async def store(self, texts: Mapping[str, str]) -> None:
        """Have these texts and no others: durable, and obeyed, when it returns."""
        ...


class TopicResource:
    """A topic's own configs."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Raises INVALID_REQUEST for no name, and what `find_topic` raises."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        self._broker = broker
        self._topic = find_topic(broker, name)
        self.texts: Mapping[str, str] = self._topic.configs

    def listed(self, name: str) -> str | None:
        setting = TopicConfig.settings.get(name)
        if setting is None or setting.type is not ConfigType.LIST:
            return None
        return setting.render(broker_default(name, self._broker.config)) or ""

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        try:
            parse_topic_configs(texts)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None

    async def store(self, texts: Mapping[str, str]) -> None:
        self._broker.topics.reconfigure(self._topic, texts)


class BrokerResource:
    """What was set at run time for this broker, or for every broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Raises INVALID_REQUEST for the name of another broker."""
        self._broker = broker
        self._name = name
        broker.broker_configs.check_name(name)
        self.texts: Mapping[str, str] = broker.broker_configs.texts(name)

    def listed(self, name: str) -> str | None:
        setting = find_setting(name)
        if setting is None or setting.type is not ConfigType.LIST:
            return None
        return setting.render(setting.default) or ""

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        self._broker.broker_configs.check(list(names), texts)

    async def store(self, texts: Mapping[str, str]) -> None:
        self._broker.broker_configs.replace(self._name, texts)
        await self._broker.topics.inherit()


class ClientMetricsResource:
    """A subscription to clients' metrics: it exists while it has configs."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self.texts: Mapping[str, str] = broker.stored_configs.texts(
            ResourceType.CLIENT_METRICS, name
        )

    def listed(self, name: str) -> str | None:
        return None  # As in Kafka, which sets them whole.

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        if not self._name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        self._broker.stored_configs.check_room(ResourceType.CLIENT_METRICS, self._name)
        for name, text in texts.items():
            setting = ClientMetricsConfig.settings.get(name)
            if setting is None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}"
                )
            try:
                setting.parse(text)
            except InvalidValue as invalid:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{name}={text} {invalid.reason}"
                ) from None
        try:
            check_patterns(texts)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None

    async def store(self, texts: Mapping[str, str]) -> None:
        self._broker.stored_configs.replace(ResourceType.CLIENT_METRICS, self._name, texts)


class GroupResource:
    """A group's own configs; the group itself need not be there."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Raises INVALID_REQUEST for no name."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        self._broker = broker
        self._name = name
        self.texts: Mapping[str, str] = broker.stored_configs.texts(ResourceType.GROUP, name)

    def listed(self, name: str) -> str | None:
        return None  # None of them is a list.

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        self._broker.stored_configs.check_room(ResourceType.GROUP, self._name)
        try:
            parse_group_configs(texts, self._broker.config)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None

    async def store(self, texts: Mapping[str, str]) -> None:
        self._broker.stored_configs.replace(ResourceType.GROUP, self._name, texts)


_RESOURCES: dict[int, Callable[[Broker, str], Resource]] = {
    ResourceType.TOPIC: TopicResource,
    ResourceType.BROKER: BrokerResource,
    ResourceType.CLIENT_METRICS: ClientMetricsResource,
    ResourceType.GROUP: GroupResource,
}


def find_resource(broker: Broker, resource_type: int, name: str) -> Resource:
    """Return what has the configs. Raises INVALID_REQUEST where there is no such thing."""
    make = _RESOURCES.get(resource_type)
    if make is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return make(broker, name)


def find_topic(broker: Broker, name: str) -> Topic:
    """Return the topic. Raises INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION."""
    check_name(name)
    topic = broker.topics.by_name(name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    return topic


__all__ = ["EVERY_BROKER", "Resource", "find_resource", "find_topic"]
