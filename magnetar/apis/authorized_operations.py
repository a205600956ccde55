"""The operations a client may perform, as a bit field (KIP-430): bit n is the operation of code n.

Nothing is forbidden yet: a client may perform every operation that a type of resource knows.
"""

from __future__ import annotations

from collections.abc import Set
from enum import IntEnum


class Operation(IntEnum):
    """Operations on resources, with the codes of Kafka's AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(operations: Set[Operation]) -> int:
    return sum(1 << operation for operation in operations)


_ALL = frozenset(Operation)
TOPIC_OPERATIONS = _bits(_ALL - {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE})
GROUP_OPERATIONS = _bits(
    {
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    }
)
CLUSTER_OPERATIONS = _bits(_ALL - {Operation.READ, Operation.WRITE, Operation.DELETE})
