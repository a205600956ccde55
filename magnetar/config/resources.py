"""The resources that have configs, and one change of one config: in the protocol's codes.

The broker, the clients and the command line share these words. What each kind of resource does
with its configs is not here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ResourceType(IntEnum):
    """The codes of Kafka's ConfigResource (KIP-133, KIP-412, KIP-714, KIP-1043)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What a change does to a config, with the codes of Kafka's AlterConfigOp (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of one config. `value` is a list, comma-separated, in APPEND and SUBTRACT."""

    name: str
    operation: int
    value: str | None
