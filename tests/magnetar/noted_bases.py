"""Bases that note on what they were told to rest."""

from __future__ import annotations

from logstore.remote.commit_store import Basis


class NotedBases:
    """Names the basis that it was given."""

    def __init__(self, basis: Basis | None = None) -> None:
        self.own = basis
        self.rested_on: list[Basis] = []

    def basis(self) -> Basis | None:
        return self.own

    def rest_on(self, basis: Basis) -> None:
        self.rested_on.append(basis)
