"""Durations, numbers, times, sizes and names as a person reads them, on a terminal and on a page.

Clients choose the names of groups, transactions and members, and what is in records. So what is no
printable character is written as an escape: control characters, which a terminal obeys, and those
that change the direction of text, so that a page shows something else than what is there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

ABSENT = "-"
#: The year 10000.
_CALENDAR_END_MS = 253_402_300_800_000
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)


def duration(value_ms: int) -> str:
    """Return the two largest units of a duration: `14m 02s`, `3d 07h`, `850ms`."""
    if value_ms < 1000:
        return f"{max(value_ms, 0)}ms"
    seconds = value_ms // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if not minutes:
        return f"{seconds}s"
    if not hours:
        return f"{minutes}m {seconds % 60:02}s"
    if not days:
        return f"{hours}h {minutes % 60:02}m"
    return f"{days}d {hours % 24:02}h"


def count(value: int) -> str:
    """Return a number with its thousands apart: `18 204`."""
    return f"{value:,}".replace(",", " ")


def known(value: int) -> str:
    """Return a number with its thousands apart; `-` if it is negative, which stands for none."""
    return ABSENT if value < 0 else count(value)


def moment(time_ms: int) -> str:
    """Return a time, to the second, in UTC: `2026-11-21 13:05:12Z`; `-` for none."""
    if time_ms < 0:
        return ABSENT
    # A producer writes what timestamp it likes: no calendar has this one.
    if time_ms >= _CALENDAR_END_MS:
        return f"{count(time_ms)} ms"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def parse_moment(text: str) -> int:
    """Return ms since 1970 of an ISO 8601 time; without a zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    # Not the machine's zone: a command should mean the same on every machine, as its output does.
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    time_ms = round(found.timestamp() * 1000)
    # Brokers read negative times as words.
    if time_ms < 0:
        raise ValueError(f"{text} is before 1970")
    return time_ms


def parse_time(text: str) -> int:
    """Return ms since 1970 of such a number, or of an ISO 8601 time. Raises ValueError."""
    digits = text.replace(" ", "")
    # `isdigit` alone takes digits of every script and texts of any length.
    if digits.isascii() and digits.isdigit() and len(digits) < 18:
        return int(digits)
    return parse_moment(text)


def printable(text: str) -> str:
    """Return the text with escapes in place of characters that cannot be seen; lines stay."""
    return _UNPRINTABLE.sub(_escape, text)


def one_line(text: str) -> str:
    """Return the text with escapes in place of tabs and ends of lines too."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def size(size_bytes: int) -> str:
    """Return a number of bytes in a unit that fits: `512 B`, `1.4 MB` (of 1000 kB)."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
