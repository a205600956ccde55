"""Which code an older client is told: PRODUCER_FENCED is younger than the requests that meet it.

Source: KIP-588.
"""

from __future__ import annotations

from wire.error_code import ErrorCode

#: The first request versions whose clients know PRODUCER_FENCED; INVALID_PRODUCER_EPOCH before.
ADD_PARTITIONS_FENCED_SINCE = 2
ADD_OFFSETS_FENCED_SINCE = 2
END_TXN_FENCED_SINCE = 2
INIT_PRODUCER_ID_FENCED_SINCE = 4


def code_for_version(code: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """Return what `code` is called in a response of `version`."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
