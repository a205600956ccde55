"""The two ways in which a client's request can fail.

`WireError`: the bytes are no message; the connection that sent them is closed, alone.
`KafkaError`: a well-formed request is refused with an error code; nothing has happened.
Everything else that goes wrong is a broken invariant or a failing disk, and stops the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.error_code import ErrorCode

#: A longer detail loses its middle: it quotes what a client chose, and a message on the wire has
#: 32767 bytes at most, four for a character.
DETAIL_CHARACTERS_MAX = 2000


class WireError(ValueError):
    """Bytes that are no well-formed message, header or record batch."""


class TooManyElements(WireError):
    """A message whose arrays hold more elements, all in all, than the caller allows."""


class KafkaError(Exception):
    """An expected refusal: `code` is for the client, `detail` for the log and the error message."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        if len(detail) > DETAIL_CHARACTERS_MAX:
            half = DETAIL_CHARACTERS_MAX // 2
            detail = f"{detail[:half]} ... {detail[-half:]}"
        super().__init__(f"{code.name}: {detail}" if detail else code.name)
        self.code = code
        self.detail = detail


class RefusedByLog(KafkaError):
    """The log refuses a batch that was otherwise fit for it; its start is told beside the code."""


class RecordsRefused(RefusedByLog):
    """INVALID_RECORD or INVALID_TIMESTAMP because of single records (KIP-467).

    `flaws` are the places of the first of them in the batch, and why each is refused; in a reason
    `{partition}` stands for the partition's name. `count` counts all of them.
    """

    def __init__(self, code: ErrorCode, flaws: Sequence[tuple[int, str]], count: int) -> None:
        super().__init__(code, f"{count} records, the first is {flaws[0][0]}: {flaws[0][1]}")
        self.flaws = flaws
        self.count = count
