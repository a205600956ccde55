"""One line of a dump."""

from __future__ import annotations

from typing import Any, NamedTuple


class Entry(NamedTuple):
    """What one line of a dump says: JSON values by name, in the order in which they are shown."""

    kind: str
    fields: dict[str, Any]
    is_damage: bool = False

    @classmethod
    def damage(cls, reason: str, position: int | None = None) -> Entry:
        """Return what says that a file is not as it should be."""
        place = {} if position is None else {"position": position}
        return cls("damage", {**place, "reason": reason}, is_damage=True)
