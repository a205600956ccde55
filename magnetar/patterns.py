"""Regular expressions that clients send: RE2, whose matching time is linear in the text.

So no pattern can stall the event loop, and what cannot be had in linear time (look-around,
back-references) is refused, as by Apache Kafka, which uses RE2/J.
"""

from __future__ import annotations

from collections.abc import Callable

from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Of one compiled pattern; a pattern that needs more is refused.
_MEMORY_BYTES_MAX = 1 << 20
_SHOWN = 200


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return whether a whole text matches `pattern`, as a function. INVALID_REGULAR_EXPRESSION."""
    # Loads a native library, which few brokers ever need.
    import re2  # type: ignore[import-untyped]  # it has no stubs

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as mistake:
        reason = mistake.args[0].decode(errors="replace")
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {pattern[:_SHOWN]!r}: {reason}"
        ) from None
    finally:
        re2.purge()  # it would keep the last 128 patterns
    return lambda text: compiled.fullmatch(text) is not None
