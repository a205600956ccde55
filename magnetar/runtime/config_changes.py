"""Carries out AlterConfigs and IncrementalAlterConfigs: each resource is checked, then stored.

`magnetar.config.changes` computes what configs become by changes. For each kind of resource,
`magnetar.runtime.config_resources` says what is refused, and where the configs are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from magnetar.config.changes import Change, Operation, changed, check_changes
from magnetar.runtime.config_resources import ConfigResources
from magnetar.runtime.logger_levels import alter_levels
from magnetar.runtime.turns import Turns
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.resource_type import ResourceType

_ConfigT = TypeVar("_ConfigT")
_ConfigT_co = TypeVar("_ConfigT_co", covariant=True)


class ResourceChanges(NamedTuple):
    """The changes that a request asks for in one resource."""

    resource_type: int
    resource_name: str
    changes: Sequence[Change]


class Outcome(NamedTuple):
    """What became of one resource, in the fields that both responses have for it."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class _RequestedResource(Protocol[_ConfigT_co]):
    """One resource of either request."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def configs(self) -> Sequence[_ConfigT_co]: ...


async def changes_of(
    turns: Turns,
    resources: Sequence[_RequestedResource[_ConfigT]],
    of_piece: Callable[[Sequence[_ConfigT]], list[Change]],
) -> list[ResourceChanges]:
    """Return the changes that a request asks for. `of_piece` turns some configs into changes."""
    asked = []
    async for resource in turns.each(resources):
        changes: list[Change] = []
        async for piece in turns.pieces(resource.configs):
            changes += of_piece(piece)
        asked.append(ResourceChanges(resource.resource_type, resource.resource_name, changes))
    return asked


async def alter(
    resources: ConfigResources,
    turns: Turns,
    asked: Sequence[ResourceChanges],
    client_host: str,
    *,
    replaces: bool,
    validate_only: bool,
) -> list[Outcome]:
    """Change each resource, as a whole or not at all; return the outcome of each, in order.

    The changes are durable on return. `client_host`: the address of the client. `replaces`: configs
    that the request does not name are removed. An outcome is a refusal of `check_changes` or of the
    resource, INVALID_REQUEST for a resource that is named twice, or no error.
    """
    named = Counter(each[:2] for each in asked)
    outcomes = []
    async for each in turns.each(asked):
        code = ErrorCode.NONE
        message: str | None = None
        try:
            if named[each[:2]] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            await _alter_one(
                resources, each, client_host, replaces=replaces, validate_only=validate_only
            )
        except KafkaError as refusal:
            code, message = refusal.code, refusal.detail
        outcomes.append(Outcome(code, message, each.resource_type, each.resource_name))
    return outcomes


async def _alter_one(
    resources: ConfigResources,
    asked: ResourceChanges,
    client_host: str,
    *,
    replaces: bool,
    validate_only: bool,
) -> None:
    resource_type, resource_name, changes = asked
    check_changes(changes)
    # Levels are changed one by one: AlterConfigs, which replaces all, has no meaning for them.
    if resource_type == ResourceType.BROKER_LOGGER and not replaces:
        alter_levels(resources.node_id, resource_name, changes, validate_only=validate_only)
        return
    resource = resources.find(resource_type, resource_name, client_host)
    texts = changed({} if replaces else resource.texts, changes, resource.listed)
    named = [change.name for change in changes if change.operation != Operation.DELETE]
    # Checks all changes before any is stored: a resource takes all of them or none.
    resource.check(named, texts)
    if not validate_only:
        await resource.store(texts)
