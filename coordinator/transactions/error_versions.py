"""Which code an older client is told: PRODUCER_FENCED is younger than the requests that meet it.

Source: KIP-588; AddPartitionsToTxn, AddOffsetsToTxn and EndTxn know it since 2, InitProducerId
since 4.
"""

from __future__ import annotations

from wire.error_code import ErrorCode

END_TXN_FENCED_SINCE = 2
ADD_PARTITIONS_FENCED_SINCE = 2
ADD_OFFSETS_FENCED_SINCE = 2
INIT_PRODUCER_ID_FENCED_SINCE = 4


def code_for_version(code: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """Return what `code` is called in a response of `version`."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
