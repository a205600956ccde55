"""How much one request of administration may change: as much as Kafka's controller writes for one.

The controller writes everything that a request changes at once, 10,000 records at most. A request
for more is refused as a whole, before anything is done. Here each entry that the request names
counts; Kafka does not count what it refuses, or finds unchanged.
"""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Source: QuorumController.MAX_RECORDS_PER_USER_OP.
CHANGES_MAX = 10_000


def check_changes(count: int) -> None:
    """Raise POLICY_VIOLATION for a request of more than CHANGES_MAX changes."""
    if count > CHANGES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
        )
