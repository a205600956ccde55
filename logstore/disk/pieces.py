"""Files that are made piece by piece, so that others get their turn between two pieces.

A piece is the position at which its bytes go, and the bytes. Pieces do not overlap, and together
they are the whole file. They are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from crc32c import crc32c

from logstore.disk.barriers import TURN, Procedure
from logstore.disk.files import Buffer

Piece: TypeAlias = tuple[int, Buffer]


def headed(head: Callable[[int], bytes], head_bytes: int, body: Iterator[bytes]) -> Iterator[Piece]:
    """Yield the pieces of a file of `body`, of at least one piece, with a head before it.

    `head` makes the head, of `head_bytes`, of the body's CRC-32C. So the file's first bytes are
    yielded last.
    """
    first = next(body)
    position, crc = head_bytes + len(first), crc32c(first)
    for data in body:
        yield position, data
        position, crc = position + len(data), crc32c(data, crc)
    yield 0, head(crc) + first


def gathering(pieces: Iterable[Piece]) -> Procedure[bytes]:
    """Return the bytes of a whole file. Others get their turn between two pieces."""
    gathered: list[Piece] = []
    for piece in pieces:
        if gathered:
            yield TURN
        gathered.append(piece)
    return whole(gathered)


def whole(pieces: Iterable[Piece]) -> bytes:
    """Return the bytes of a whole file, at once."""
    return b"".join(data for _, data in sorted(pieces))
