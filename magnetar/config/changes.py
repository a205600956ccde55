"""Changes of configs: what a resource's own configs become, whatever the resource is.

The common part of AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-339). Configs are texts by
name here; nothing is checked against a setting, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from magnetar.config.setting import split_words
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.types import STRING_BYTES_MAX

#: Returns the list that a config has where it was not set; None where the config is no list.
DefaultList = Callable[[str], str | None]


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
    # The result would depend on an order that the protocol does not promise.
    if len({change.name for change in changes}) != len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def changed(
    texts: Mapping[str, str], changes: Sequence[Change], default_list: DefaultList
) -> dict[str, str]:
    """Return what `texts` become by `changes`, which `check_changes` has let pass.

    Raises INVALID_CONFIG for a list operation on what is no list, or that would make a list longer
    than an answer can show, and INVALID_REQUEST for an operation that does not exist.
    """
    after = dict(texts)
    for change in changes:
        name, operation, value = change
        # Without a call: a request may have tens of thousands of these.
        if operation == Operation.DELETE:
            after.pop(name, None)
            continue
        assert value is not None, "check_changes comes first"
        after[name] = (
            value
            if operation == Operation.SET
            else _list_after(after.get(name), change, value, default_list)
        )
    return after


def _list_after(current: str | None, change: Change, value: str, default_list: DefaultList) -> str:
    """Return what a list becomes by APPEND or SUBTRACT."""
    try:
        operation = Operation(change.operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{change.operation} is not a known operation."
        ) from None
    # A list that is not set is the default one: APPEND extends what holds now (KIP-339), or adding
    # a policy would drop the inherited one.
    default = default_list(change.name)
    if default is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {change.name} because its type is not LIST.",
        )
    words = split_words(default if current is None else current)
    if operation is Operation.APPEND:
        # Appending what is there already changes nothing, so the request can be repeated. An empty
        # word is refused with the list that it would be in; as in Kafka, not one behind the last.
        added = [part.strip() for part in value.rstrip(",").split(",")]
        appended = ",".join(dict.fromkeys([*words, *added]))
        if len(appended.encode()) > STRING_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{change.name} would have more than {STRING_BYTES_MAX} bytes.",
            )
        return appended
    named = {*split_words(value)}
    return ",".join(word for word in words if word not in named)
