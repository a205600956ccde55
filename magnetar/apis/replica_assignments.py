"""The check of replicas that a client assigns by hand: with one broker there is one choice."""

from __future__ import annotations

from collections.abc import Sequence

from wire.error_code import ErrorCode
from wire.errors import KafkaError


def check_replicas(node_id: int, replicas: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless `replicas` is this broker, once."""
    others = [replica for replica in replicas if replica != node_id]
    if others:
        reason = f"broker {others[0]}, but no such broker is registered"
    elif not replicas:
        reason = "an empty replica list"
    elif len(replicas) > 1:
        reason = f"the broker {node_id} more than once"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {reason}."
    )
