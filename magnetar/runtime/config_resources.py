"""The resources that have configs: topics, groups, the broker, client metrics subscriptions.

A resource returns its own configs, checks what they would become, and stores that. The rules that
all of them have in common are in `magnetar.config.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from magnetar.config.broker import BrokerConfig
from magnetar.config.client_metrics import (
    ClientMetricsConfig,
    check_patterns,
    check_size,
    is_interval,
)
from magnetar.config.dynamic import find_setting
from magnetar.config.group import parse_group_configs
from magnetar.config.setting import ConfigType, InvalidValue
from magnetar.config.topic import TopicConfig, broker_default, check_topic_configs
from magnetar.runtime.patterns import is_light_pattern
from magnetar.storage.broker_configs import BrokerConfigs
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topic import Topic, no_topic
from magnetar.storage.topic_names import check_name
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType


class Resource(Protocol):
    """One thing with configs."""

    @property
    def texts(self) -> Mapping[str, str]:
        """The resource's own configs."""
        ...

    def listed(self, name: str) -> str | None:
        """Return the list that APPEND and SUBTRACT begin with; None where it is no list."""
        ...

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        """Raise KafkaError unless these names may be set, and the configs may become `texts`."""
        ...

    async def store(self, texts: Mapping[str, str]) -> None:
        """Replace the resource's configs. They are durable, and obeyed, when it returns."""
        ...


class TopicResource:
    """A topic's own configs."""

    def __init__(self, topics: Topics, config: BrokerConfig, name: str) -> None:
        self._topics = topics
        self._config = config
        self._name = name
        topic = topics.by_name(name)
        self.texts: Mapping[str, str] = {} if topic is None else topic.configs

    def listed(self, name: str) -> str | None:
        setting = TopicConfig.settings.get(name)
        if setting is None or setting.type is not ConfigType.LIST:
            return None
        return setting.render(broker_default(name, self._config)) or ""

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        # In Kafka's order: whether there is such a topic comes last.
        if not self._name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_name(self._name)
        check_topic_configs(texts)
        existing_topic(self._topics, self._name)

    async def store(self, texts: Mapping[str, str]) -> None:
        self._topics.configs.replace(existing_topic(self._topics, self._name), texts)


def existing_topic(topics: Topics, name: str) -> Topic:
    """Return a topic, whose name was checked. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    topic = topics.by_name(name)
    if topic is None:
        raise no_topic(name)
    return topic


class BrokerResource:
    """The configs set at run time for this broker, or for every broker."""

    def __init__(self, topics: Topics, configs: BrokerConfigs, name: str, client_host: str) -> None:
        """Raises INVALID_REQUEST for the name of another broker."""
        configs.check_name(name)
        self._client_host = client_host
        self._topics = topics
        self._configs = configs
        self._name = name
        self.texts: Mapping[str, str] = configs.texts(name)

    def listed(self, name: str) -> str | None:
        setting = find_setting(name)
        if setting is None or setting.type is not ConfigType.LIST:
            return None
        return setting.render(setting.default) or ""

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        self._configs.check(self._name, list(names), texts, self._client_host)

    async def store(self, texts: Mapping[str, str]) -> None:
        self._configs.replace(self._name, texts)
        # Topics take over what they inherit before the request is answered.
        await self._topics.configs.inherit()


class ClientMetricsResource:
    """A subscription to the metrics of clients: it exists while it has configs."""

    def __init__(self, stored: StoredConfigs, name: str) -> None:
        self._stored = stored
        self._name = name
        self.texts: Mapping[str, str] = stored.texts(ResourceType.CLIENT_METRICS, name)

    def listed(self, name: str) -> str | None:
        # As in Kafka, which sets these configs whole.
        return None

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        if not self._name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        self._stored.check_room(ResourceType.CLIENT_METRICS, self._name)
        try:
            check_size(texts)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None
        for name, text in texts.items():
            setting = ClientMetricsConfig.settings.get(name)
            if setting is None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}"
                )
            try:
                setting.parse(text)
            except InvalidValue as invalid:
                # As in Kafka: the bounds of an interval are not those of its type.
                is_typed = is_interval(text)
                code = ErrorCode.INVALID_REQUEST if is_typed else ErrorCode.INVALID_CONFIG
                raise KafkaError(code, f"{name}={text} {invalid.reason}") from None
        try:
            check_patterns(texts, is_light_pattern)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None

    async def store(self, texts: Mapping[str, str]) -> None:
        self._stored.replace(ResourceType.CLIENT_METRICS, self._name, texts)


class GroupResource:
    """A group's own configs; the group itself need not exist."""

    def __init__(self, stored: StoredConfigs, config: BrokerConfig, name: str) -> None:
        self._stored = stored
        self._config = config
        self._name = name
        self.texts: Mapping[str, str] = stored.texts(ResourceType.GROUP, name)

    def listed(self, name: str) -> str | None:
        # None of these configs is a list.
        return None

    def check(self, names: Sequence[str], texts: Mapping[str, str]) -> None:
        if not self._name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        # A group need not exist to have configs, so a client could name ever new ones.
        self._stored.check_room(ResourceType.GROUP, self._name)
        try:
            parse_group_configs(texts, self._config)
        except InvalidValue as invalid:
            raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None

    async def store(self, texts: Mapping[str, str]) -> None:
        self._stored.replace(ResourceType.GROUP, self._name, texts)


class ConfigResources:
    """Everything that has configs, by type and name.

    `broker` and `stored` are public: describing reads what altering has stored there.
    """

    def __init__(
        self, config: BrokerConfig, topics: Topics, broker: BrokerConfigs, stored: StoredConfigs
    ) -> None:
        self._config = config
        self._topics = topics
        self.broker = broker
        self.stored = stored
        self.node_id = config.node_id

    def find(self, resource_type: int, name: str, client_host: str) -> Resource:
        """Return one resource, for the client at that address.

        Raises INVALID_REQUEST where the type cannot have configs, and what
        `BrokerConfigs.check_name` raises.
        """
        match resource_type:
            case ResourceType.TOPIC:
                return TopicResource(self._topics, self._config, name)
            case ResourceType.BROKER:
                return BrokerResource(self._topics, self.broker, name, client_host)
            case ResourceType.CLIENT_METRICS:
                return ClientMetricsResource(self.stored, name)
            case ResourceType.GROUP:
                return GroupResource(self.stored, self._config, name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION."""
        check_name(name)
        return existing_topic(self._topics, name)
