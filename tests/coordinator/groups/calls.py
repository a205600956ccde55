"""How much a step does, in calls of functions: the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def calls_of(step: Callable[[], object]) -> int:
    """Return how many functions a step calls, those of Python alone."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    # A library may have callbacks of the collector, which would count.
    was_collecting = gc.isenabled()
    gc.disable()
    former = sys.getprofile()
    sys.setprofile(on_event)
    try:
        step()
    finally:
        sys.setprofile(former)
        if was_collecting:
            gc.enable()
    return count
