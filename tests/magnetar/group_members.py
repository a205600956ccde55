"""What members of a group say to a broker, of either protocol: one group, one topic."""

from __future__ import annotations

from typing import Any

from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

GROUP = "group"
#: ConsumerProtocolSubscription without its version: the topic orders, no user data.
ORDERS_OF_ANY_VERSION = b"\0\0\0\1" + b"\0\6orders" + b"\0\0\0\0"
ORDERS = b"\0\0" + ORDERS_OF_ANY_VERSION


async def beat(
    client: Any, member_id: str, epoch: int, **fields: Any
) -> ConsumerGroupHeartbeatResponse:
    """Send a heartbeat of the newer protocol; epoch 0 joins and subscribes to orders."""
    said: dict[str, Any] = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch}
    if epoch == 0:
        said |= {
            "subscribed_topic_names": ["orders"],
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
        }
    request = ConsumerGroupHeartbeatRequest(**{**said, **fields})
    answer: ConsumerGroupHeartbeatResponse = await client.ask(
        request, 1, ConsumerGroupHeartbeatResponse
    )
    return answer
