"""The two ways in which a client's request can fail.

`WireError`: the bytes are no message; the connection that sent them is closed, alone.
`KafkaError`: a well-formed request is refused with an error code; nothing has happened.
Everything else that goes wrong is a broken invariant or a failing disk, and stops the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.error_code import ErrorCode


class WireError(ValueError):
    """Bytes that are no well-formed message, header or record batch."""


class TooManyElements(WireError):
    """A message whose arrays hold more elements, all in all, than the caller allows."""


class KafkaError(Exception):
    """An expected refusal: `code` is for the client, `detail` for the log and the error message."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}: {detail}" if detail else code.name)
        self.code = code
        self.detail = detail


class RecordsRefused(KafkaError):
    """INVALID_RECORD because of single records: their places in the batch, and why (KIP-467)."""

    def __init__(self, batch_indexes: Sequence[int], reason: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, f"{reason}: {len(batch_indexes)} records")
        self.batch_indexes = batch_indexes
        self.reason = reason
