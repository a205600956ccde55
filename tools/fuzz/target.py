"""What a target of the fuzzing is, and the error that its judges raise."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Target(NamedTuple):
    """One subject."""

    name: str
    #: Makes an input. Equal states of the generator make equal inputs.
    generate: Callable[[Random], bytes]
    #: Returns where the input is treated as it should be. Whatever it raises is a fault.
    run: Callable[[bytes], None]
    #: The CPU time that one input may take.
    run_s_max: float = 0.5


class Fault(AssertionError):
    """The code under test broke a promise. The text says which."""


def judge(holds: bool, promise: str) -> None:
    """Raise Fault where `promise` does not hold."""
    if not holds:
        raise Fault(promise)
