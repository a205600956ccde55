"""What the version of a transactional request says about its client: codes it knows, what it adds.

The coordinator decides without versions. Handlers translate its codes here, for clients that are
older than the code. Sources: KIP-588 (PRODUCER_FENCED), KIP-890 (TRANSACTION_ABORTABLE, implicit
adds, the epoch bumped by EndTxn).
"""

from __future__ import annotations

from wire.error_code import ErrorCode

#: The first request versions whose clients know PRODUCER_FENCED; INVALID_PRODUCER_EPOCH before.
ADD_PARTITIONS_FENCED_SINCE = 2
ADD_OFFSETS_FENCED_SINCE = 2
END_TXN_FENCED_SINCE = 2
INIT_PRODUCER_ID_FENCED_SINCE = 4

#: The first versions whose clients know TRANSACTION_ABORTABLE; INVALID_TXN_STATE before.
PRODUCE_ABORTABLE_SINCE = 11
TXN_OFFSET_COMMIT_ABORTABLE_SINCE = 4

#: Transaction version 2: the request adds what its data is for; EndTxn bumps the epoch.
PRODUCE_ADDS_SINCE = 12
TXN_OFFSET_COMMIT_ADDS_SINCE = 5
END_TXN_BUMPS_SINCE = 5


def code_for_version(code: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """Return what `code` is called in a response of `version`."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
