"""Principals: who a request comes from, in Kafka's notation `User:ada`."""

from __future__ import annotations

from typing import NamedTuple

USER_TYPE = "User"


class Principal(NamedTuple):
    """One authenticated identity. Source: KafkaPrincipal."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


#: The client of a listener that authenticates no one.
ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")


def user(name: str) -> Principal:
    """Return the principal of a user."""
    return Principal(USER_TYPE, name)


def parse_principal(text: str) -> Principal:
    """Return the principal that `text` writes as Type:name. Raises ValueError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text!r} is not a principal: expected Type:name, as User:ada")
    return Principal(kind, name)
