"""Changes of configs: what is done to one, and what a resource's become of it.

Owns what AlterConfigs and IncrementalAlterConfigs have in common for everything that has configs
(KIP-133, KIP-339); what that is, `magnetar.runtime.config_resources` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from magnetar.config.resource_type import ResourceType
from magnetar.runtime.config_resources import ConfigResources, Resource
from magnetar.runtime.logger_levels import alter_levels
from wire.error_code import ErrorCode
from wire.errors import KafkaError


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


class ResourceChanges(NamedTuple):
    """What is asked of one resource."""

    resource_type: int
    resource_name: str
    changes: Sequence[Change]


class Outcome(NamedTuple):
    """What became of one resource, in the fields that both answers have for it."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


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


async def alter(
    resources: ConfigResources,
    asked: Sequence[ResourceChanges],
    *,
    replaces: bool,
    validate_only: bool,
) -> list[Outcome]:
    """Carry out what is asked of each resource, all of it or nothing; durable when it returns.

    `replaces`: configs that are not named are forgotten. Returns the outcome of each, in order:
    what `check_changes` and the resource refuse, INVALID_REQUEST where one is named twice.
    """
    named = Counter(each[:2] for each in asked)
    outcomes = []
    for each in asked:
        code = ErrorCode.NONE
        message: str | None = None
        try:
            if named[each[:2]] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            await _alter_one(resources, each, replaces=replaces, validate_only=validate_only)
        except KafkaError as refusal:
            code, message = refusal.code, refusal.detail
        outcomes.append(Outcome(code, message, each.resource_type, each.resource_name))
    return outcomes


async def _alter_one(
    resources: ConfigResources, asked: ResourceChanges, *, replaces: bool, validate_only: bool
) -> None:
    resource_type, resource_name, changes = asked
    check_changes(changes)
    if resource_type == ResourceType.BROKER_LOGGER and not replaces:
        alter_levels(resources.node_id, resource_name, changes, validate_only=validate_only)
        return
    resource = resources.find(resource_type, resource_name)
    texts = changed(resource, changes, replaces=replaces)
    named = [change.name for change in changes if change.operation != Operation.DELETE]
    resource.check(named, texts)
    if not validate_only:
        await resource.store(texts)


def changed(resource: Resource, changes: Sequence[Change], *, replaces: bool) -> dict[str, str]:
    """Return what a resource has of its own after `changes`; neither checked nor stored.

    Raises INVALID_CONFIG for a list operation on what is no list, and INVALID_REQUEST for an
    operation that is none.
    """
    texts = {} if replaces else dict(resource.texts)
    for change in changes:
        text = _value_after(texts.get(change.name), change, resource)
        if text is None:
            texts.pop(change.name, None)
        else:
            texts[change.name] = text
    return texts


def _value_after(current: str | None, change: Change, resource: Resource) -> str | None:
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
    default = resource.listed(change.name)
    if default is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {change.name} because its type is not LIST.",
        )
    words, named = _words(default if current is None else current), _words(change.value)
    if operation is Operation.APPEND:
        return ",".join(dict.fromkeys(words + named))
    return ",".join(word for word in words if word not in named)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]
