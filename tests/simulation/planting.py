"""How a fault is planted: another function takes the place of one of the product's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def planted(fault: Fault | None) -> Iterator[None]:
    """Plant a fault, or none."""
    if fault is None:
        yield
        return
    module, _, path = fault.where.partition(":")
    holder: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for each in classes:
        holder = getattr(holder, each)
    real = getattr(holder, attribute)
    setattr(holder, attribute, fault.make(real))
    try:
        yield
    finally:
        setattr(holder, attribute, real)
