"""Changes of configs: which resources have configs to change, and what a topic's become.

Owns Kafka's rules for AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-339). Topics have
configs that can be changed. The broker's are read when it starts: none can be changed while it
runs, and Kafka's refusal of such is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from magnetar.config.setting import ConfigType, InvalidValue
from magnetar.config.topic import TopicConfig, broker_default, parse_topic_configs
from magnetar.topics import check_name
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker
    from magnetar.config.broker import BrokerConfig
    from magnetar.topics import Topic


class ResourceType(IntEnum):
    """What configs belong to, with the codes of Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What is done to one config, with the codes of Kafka's AlterConfigOp."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of one config. `value` is a list, comma-separated, in APPEND and SUBTRACT."""

    name: str
    operation: int
    value: str | None


def check_changes(changes: Sequence[Change]) -> None:
    """Raise INVALID_REQUEST where a config is named twice, or has no value for its operation."""
    missing = [
        change.name
        for change in changes
        if change.value is None and change.operation != Operation.DELETE
    ]
    if missing:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}"
        )
    if len({change.name for change in changes}) != len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def find_topic(broker: Broker, name: str) -> Topic:
    """Return the topic whose configs are to change.

    Raises INVALID_REQUEST for no name, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
    """
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_name(name)
    topic = broker.topics.by_name(name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    return topic


def check_broker_changes(broker: Broker, name: str, changes: Sequence[Change]) -> None:
    """Raise INVALID_REQUEST unless nothing of this broker is to be changed.

    An empty `name` stands for every broker of the cluster, as in Kafka.
    """
    if name and name != str(broker.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id}, but received {name}",
        )
    if changes:
        names = ", ".join(change.name for change in changes)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{names}]"
        )


def refuse_resource(resource_type: int) -> KafkaError:
    """Return the refusal of a resource that has no configs here to change."""
    try:
        kind = ResourceType(resource_type).name
    except ValueError:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"Resources of type {kind} have no configs here to change."
    )


def changed(
    own: Mapping[str, str], changes: Sequence[Change], broker: BrokerConfig
) -> dict[str, str]:
    """Return a topic's own configs after `changes`; checked, but not stored.

    APPEND and SUBTRACT begin with the broker's value where the topic has none of its own. Raises
    INVALID_CONFIG, and INVALID_REQUEST for an operation that is none.
    """
    texts = dict(own)
    for change in changes:
        text = _value_after(texts.get(change.name), change, broker)
        if text is None:
            texts.pop(change.name, None)
        else:
            texts[change.name] = text
    try:
        parse_topic_configs(texts)
    except InvalidValue as invalid:
        raise KafkaError(ErrorCode.INVALID_CONFIG, invalid.reason) from None
    return texts


def _value_after(current: str | None, change: Change, broker: BrokerConfig) -> str | None:
    try:
        operation = Operation(change.operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{change.operation} is not a known operation."
        ) from None
    if operation is Operation.DELETE:
        return None
    assert change.value is not None, "check_changes comes first"
    if operation is Operation.SET:
        return change.value
    setting = TopicConfig.settings.get(change.name)
    if setting is None or setting.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {change.name} because its type is not LIST.",
        )
    if current is None:
        current = setting.render(broker_default(change.name, broker)) or ""
    words, named = _words(current), _words(change.value)
    if operation is Operation.APPEND:
        return ",".join(dict.fromkeys(words + named))
    return ",".join(word for word in words if word not in named)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def alter(
    broker: Broker,
    resource_type: int,
    resource_name: str,
    changes: Sequence[Change],
    *,
    replaces: bool,
    validate_only: bool,
) -> None:
    """Carry out the changes of one resource, all or none; durable when it returns.

    `replaces`: configs that are not named go back to the broker's. Raises what the checks above
    refuse.
    """
    check_changes(changes)
    if resource_type == ResourceType.BROKER:
        check_broker_changes(broker, resource_name, changes)
        return
    if resource_type != ResourceType.TOPIC:
        raise refuse_resource(resource_type)
    topic = find_topic(broker, resource_name)
    configs = changed({} if replaces else topic.configs, changes, broker.config)
    if not validate_only:
        broker.topics.reconfigure(topic, configs)
