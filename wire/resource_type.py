"""What settings belong to, by the codes of the protocol."""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """The codes of Kafka's ConfigResource. Source: KIP-133, KIP-412, KIP-714, KIP-1043."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
