"""One line of a dump."""

from __future__ import annotations

from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One line of a dump: JSON values by name, in the order in which they are shown."""

    kind: str
    fields: dict[str, Any]
    is_damage: bool = False

    @classmethod
    def damage(cls, reason: str, position: int | None = None) -> Entry:
        """Return the line that reports a damaged place in a file."""
        place = {} if position is None else {"position": position}
        return cls("damage", {**place, "reason": reason}, is_damage=True)
