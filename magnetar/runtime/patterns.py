"""Regular expressions that clients send: RE2, whose matching time is linear in the text.

Look-around and back-references, which linear time does not allow, are refused, as by Apache Kafka,
which uses RE2/J. Linear time can still be long: a large pattern takes a second over 30 kB, and
minutes over ten thousand topics. So all patterns share one thread of their own, in which they take
turns. No pattern waits for the end of another, and no other work waits for them. A pattern whose
request is cancelled, because its client has gone or the broker stops, gets no further turn.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import partial
from time import perf_counter
from typing import Any

from logstore.disk.pools import Pool
from magnetar.logging import shown
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: The memory of one compiled pattern; a pattern that needs more is refused.
_MEMORY_BYTES_MAX = 1 << 20
#: The same of a pattern that the event loop itself matches: so it takes some milliseconds at most.
LIGHT_BYTES_MAX = 1 << 18
#: The length of a turn, in which an ordinary pattern matches some thousand texts. A turn ends only
#: between two texts: one of the worst patterns takes 80 ms for one topic's name.
_TURN_S = 0.01
#: Matches the beginning of a named group (`name`), or what may contain the same text and is none: a
#: quotation, an escape, a class of characters. For a pattern that RE2 has accepted.
_NAMED = re.compile(
    r"(?: \\Q.*?(?:\\E|\Z) | \\. | \[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*+\] )"
    r" | (?P<name> \(\?P?<[^>]+> )",
    re.VERBOSE | re.DOTALL,
)

PATTERNS = Pool("patterns", 1, 100, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def matching(pattern: str, texts: Iterable[str]) -> frozenset[str]:
    """Return those of `texts` that `pattern` matches whole.

    Raises INVALID_REGULAR_EXPRESSION; COORDINATOR_LOAD_IN_PROGRESS if too many patterns wait.
    """
    # A copy, on the event loop: the texts may come from state that the loop changes meanwhile.
    waiting = deque(texts)
    found: set[str] = set()
    with PATTERNS.place():
        compiled = await PATTERNS.turn(partial(compile_pattern, pattern))
        while waiting:
            found.update(await PATTERNS.turn(partial(_match_some, compiled, waiting)))
    return frozenset(found)


def is_light_pattern(text: str) -> bool:
    """Return whether the text is a pattern that the event loop may match."""
    try:
        compile_pattern(text, LIGHT_BYTES_MAX)
    except KafkaError:
        return False
    return True


def compile_pattern(pattern: str, memory_bytes_max: int = _MEMORY_BYTES_MAX) -> Any:
    """Return the `re2` pattern, without groups. Raises INVALID_REGULAR_EXPRESSION."""
    # The import loads a native library, which few brokers ever need.
    import re2  # type: ignore[import-untyped]  # it has no stubs

    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory_bytes_max
    # What a group has matched is not asked for, and costs a thousand times as much with many.
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options=options)
        if compiled.groups:
            # Named groups are captured all the same: they lose their names.
            compiled = re2.compile(_NAMED.sub(_without_name, pattern), options=options)
    except re2.error as mistake:
        reason = mistake.args[0].decode(errors="replace")
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {shown(pattern)!r}: {reason}"
        ) from None
    finally:
        # Else re2 would keep the last 128 patterns.
        re2.purge()
    return compiled


def _without_name(found: re.Match[str]) -> str:
    return "(" if found["name"] else found[0]


def _match_some(compiled: Any, waiting: deque[str]) -> list[str]:
    """Take texts from `waiting`, one at least, until the turn is over; return those that match."""
    found = []
    ends_at_s = perf_counter() + _TURN_S
    while waiting:
        text = waiting.popleft()
        if compiled.fullmatch(text) is not None:
            found.append(text)
        if perf_counter() >= ends_at_s:
            break
    return found
