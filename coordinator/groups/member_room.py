"""The room that members of groups have together: what they say of themselves, over all groups.

A member is kept for as long as it heartbeats, with all that it has said: topics, a pattern, ids,
the metadata of its protocols, and what its group's leader has assigned to it. An id that was given
to a client is kept until the client joins with it, for half an hour at most. Kafka bounds none of
it over all groups, so one client with many members could take all memory. Here each shard has an
account, which members of both protocols enter when they join and leave when they go.

The figures are estimates of what an object takes in memory beside its text, on the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: A member that says nothing: its object, its sessions, its places in the group's tables.
MEMBER_BYTES = 1024
#: An id that was given out, beside its text: its place and its deadline.
PENDING_BYTES = 128
#: A text beside its characters, and its places in sets and counters.
TEXT_BYTES = 64
#: What a member says of itself is small up to here: some hundred topic names.
SMALL_BYTES = 8192
#: The part of the room, in quarters, for members that say much: the rest is for those that say
#: little, as nearly all clients do.
_LARGE_QUARTERS = 3


class MemberAccount:
    """What the members of some groups take. Groups enter and leave changes of their own."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


def texts_bytes(texts: Iterable[str | None]) -> int:
    """Return what texts take in memory; None takes nothing."""
    return sum(_text_bytes(text) for text in texts if text)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return what a classic member's protocols take in memory, with their metadata."""
    return sum(_text_bytes(name) + len(metadata) for name, metadata in protocols)


def _text_bytes(text: str) -> int:
    # Python keeps all characters of a text in the width of the widest one: up to four bytes.
    return len(text) * (1 if text.isascii() else 4) + TEXT_BYTES


def has_room(taken_bytes: int, more_bytes: int, bytes_max: int) -> bool:
    """Whether `more_bytes` have room beside `taken_bytes`. A negative `bytes_max`: no limit.

    What needs no more than before always has room: members can go on, and leave.
    """
    if more_bytes <= 0 or bytes_max < 0:
        return True
    quarters = 4 if more_bytes <= SMALL_BYTES else _LARGE_QUARTERS
    return taken_bytes + more_bytes <= bytes_max * quarters // 4


def no_room(code: ErrorCode, taken_bytes: int, more_bytes: int, bytes_max: int) -> KafkaError:
    """Return the refusal of what has no room."""
    return KafkaError(
        code,
        f"the members of all groups take {taken_bytes} bytes, {more_bytes} more have no room in"
        f" {bytes_max} (queued.max.request.bytes)",
    )
