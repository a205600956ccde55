"""What a new topic gets: numbers of partitions and replicas, their bounds, defaults, growth."""

from __future__ import annotations

from magnetar.config.broker import BrokerConfig
from magnetar.storage.topic_names import CONSUMER_OFFSETS, INTERNAL, TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Most partitions of one topic, and most that one request makes. Kafka bounds a request likewise.
PARTITIONS_MAX = 10_000

#: Why there is one replica, where nodes share a disk.
ONE_DISK = "The replication factor can only be 1: all data is on one disk of this machine."

#: In a request: the broker's configuration decides.
BROKER_DEFAULT = -1


def counts_of_new(
    name: str,
    partition_count: int,
    replication_factor: int,
    config: BrokerConfig,
    nodes_max: int | None = None,
) -> tuple[int, int]:
    """Return the partition count and replication factor of a topic that is to be made.

    BROKER_DEFAULT stands for the configured number. `nodes_max`: how many nodes a cluster has; None
    where all nodes share a disk. There the coordinators' topics have one replica, whatever is
    configured. In a cluster they may have more than there are nodes yet. Raises
    INVALID_REPLICATION_FACTOR for more replicas than nodes, INVALID_PARTITIONS for no partitions,
    POLICY_VIOLATION for too many.
    """
    if partition_count == BROKER_DEFAULT:
        partition_count = _default_partition_count(name, config)
    if replication_factor == BROKER_DEFAULT:
        replication_factor = _default_factor(name, config, is_one_disk=nodes_max is None)
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor must be larger than 0, not {replication_factor}.",
        )
    # In Kafka's order, so that a request with two mistakes is told of the same one.
    _check_partition_count(partition_count)
    if nodes_max is None and replication_factor > 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, ONE_DISK)
    if nodes_max is not None and replication_factor > nodes_max and name not in INTERNAL:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target"
            f" replication factor of {replication_factor} cannot be reached because only"
            f" {nodes_max} broker(s) are registered.",
        )
    return partition_count, replication_factor


def _default_factor(name: str, config: BrokerConfig, *, is_one_disk: bool) -> int:
    if name not in INTERNAL:
        return int(config.default_replication_factor)
    if is_one_disk:
        return 1
    if name == CONSUMER_OFFSETS:
        return int(config.offsets_topic_replication_factor)
    return int(config.transaction_state_log_replication_factor)


def _default_partition_count(name: str, config: BrokerConfig) -> int:
    if name == CONSUMER_OFFSETS:
        return config.offsets_topic_num_partitions
    if name == TRANSACTION_STATE:
        return config.transaction_state_log_num_partitions
    return config.num_partitions


def _check_partition_count(partition_count: int) -> None:
    if partition_count <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions was set to an invalid non-positive value: {partition_count}.",
        )
    if partition_count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{partition_count} partitions are more than the {PARTITIONS_MAX} a topic may have.",
        )


def check_total(partition_count: int) -> None:
    """Raise POLICY_VIOLATION for a request that makes more partitions than one topic may have."""
    # All other changes of topics wait until they are made.
    if partition_count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )


def internal_configs(name: str, config: BrokerConfig) -> dict[str, str]:
    """Return the settings that Kafka gives the coordinators' topics."""
    segment_bytes = (
        config.offsets_topic_segment_bytes
        if name == CONSUMER_OFFSETS
        else config.transaction_state_log_segment_bytes
    )
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer" if name == CONSUMER_OFFSETS else "uncompressed",
        "segment.bytes": str(segment_bytes),
    }


def check_increase(name: str, current: int, partition_count: int) -> None:
    """Raise unless a topic of `current` partitions may be given `partition_count` of them.

    INVALID_PARTITIONS unless it is an increase; POLICY_VIOLATION for too many, and for the
    coordinators' topics: a group's partition follows from their count.
    """
    if partition_count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if partition_count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {partition_count} would"
            " not be an increase.",
        )
    _check_partition_count(partition_count)
    if name in INTERNAL:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{name} keeps the partitions it was created with: the coordinators' state is"
            " spread over them by their count.",
        )
