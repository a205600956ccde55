"""A fault that is planted in the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A function of the product, and what stands in its place."""

    name: str
    where: str
    """module:attribute, or module:Class.method"""
    what: str
    """The fault in a sentence, for the table."""
    make: Callable[[Any], Any]
    """The real function -> the faulty one."""
    family: str = ""
    """Which histories can find it; empty: the ordinary ones."""
