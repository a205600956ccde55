"""The longest names that the catalog and memory keep: of users, of entities with quotas, of
resources with configs, in ACLs.

A request may name 32 KB, and one wide character makes Python keep four bytes for each. So a bound
on the number of names does not bound memory by itself. Names that are there already stay.
"""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: In UTF-8. The ids of groups have the same bound (`coordinator.groups.shard`).
NAME_BYTES_MAX = 1024


def check_length(name: str) -> None:
    """Raise POLICY_VIOLATION for a name that is too long to be kept."""
    if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"The name is longer than {NAME_BYTES_MAX} bytes."
        )
