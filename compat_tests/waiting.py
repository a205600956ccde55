"""Waiting for what a broker does after its answer, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable

from compat_tests.client import TIMEOUT_S

_ASKED_EVERY_S = 0.02


def eventually(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Return when it holds; that it never did is an error."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(_ASKED_EVERY_S)
