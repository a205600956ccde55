"""How a fault is planted: another function takes the place of one of the product's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
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


class BrokenPlant(Exception):
    """A planted function does not fit the product any more: what is found says nothing."""


def check_plant(errors: Iterable[BaseException]) -> None:
    """Raise BrokenPlant where one of these errors comes of a call that does not fit."""
    for error in errors:
        if isinstance(error, TypeError | AttributeError | NameError):
            raise BrokenPlant(repr(error)) from error


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
