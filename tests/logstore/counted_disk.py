"""A simulated disk that says which syncs there were."""

from __future__ import annotations

from tests.logstore.simulated_disk import SimulatedDisk


class Counted(SimulatedDisk):
    """Says which syncs there were."""

    def __init__(self, *, can_sync_all: bool = True) -> None:
        super().__init__(can_sync_all=can_sync_all)
        self.syncs: list[str] = []

    def before(self, operation: str) -> None:
        if operation.startswith("sync"):
            self.syncs.append(operation)
        super().before(operation)
