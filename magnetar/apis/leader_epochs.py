"""The check of a client's leader epoch, for the APIs that read partitions. Source: KIP-320."""

from __future__ import annotations

from logstore.partition.log import PartitionLog
from wire.error_code import ErrorCode
from wire.errors import KafkaError

UNKNOWN_EPOCH = -1


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> None:
    """Refuse a client whose metadata is older or newer than this leader; -1 asks for no check.

    Raises FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
    """
    if current_leader_epoch in (UNKNOWN_EPOCH, log.leader_epoch):
        return
    detail = f"epoch {current_leader_epoch}, the leader's is {log.leader_epoch}"
    if current_leader_epoch < log.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, detail)
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, detail)
