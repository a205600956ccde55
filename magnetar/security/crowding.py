"""Which connection is closed when too many wait to be let in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

WaitingT = TypeVar("WaitingT")


def gives_way(waiting: Mapping[WaitingT, str]) -> WaitingT:
    """Return the oldest connection of the host that has most of them.

    `waiting` has each one's host, the oldest first. So a host with many connections loses its own,
    and a host with few keeps them until they are let in.
    """
    ((crowd, _),) = Counter(waiting.values()).most_common(1)
    return next(one for one, host in waiting.items() if host == crowd)
