"""Offsets committed as OffsetCommit and TxnOffsetCommit do, without their requests."""

from __future__ import annotations

from magnetar.runtime.group_offsets import Committed
from wire.error_code import ErrorCode


async def durably(committed: Committed) -> list[ErrorCode]:
    """Return the code of each commit, once those accepted are durable."""
    await committed.log.durable(committed.end_offset)
    return committed.codes
