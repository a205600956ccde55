"""How long the names may be that the catalog keeps, and memory with it: of users, of entities with
quotas, of resources with configs.

Requests name up to 32 KB, which Python keeps in four bytes for each character where one of them is
wide. So a bound of how many there are is none without this one. Names that are there stay.
"""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: In UTF-8. As for the ids of groups and transactions.
NAME_BYTES_MAX = 1024


def check_length(name: str) -> None:
    """Raise POLICY_VIOLATION for a name that is too long to be kept."""
    if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"The name is longer than {NAME_BYTES_MAX} bytes."
        )
