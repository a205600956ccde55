"""What makes durable what ledgers have written: files and a journal, or a shared store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from logstore.disk.files import StorageFailure
from logstore.sync.sync_executors import Sync

#: Is called on the event loop when a sync has ended, with what it failed of.
Performed: TypeAlias = Callable[[OSError | StorageFailure | None], None]


class Medium(Protocol):
    """Where group commit makes durable what ledgers have written."""

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        """Make all of these durable, then call `done`, in the order of the calls.

        The next call comes after `make_room`, which need not be called, or `done`. `settles`: also
        what earlier ones have left to do later. There may be no syncs then.
        """

    def close(self) -> None:
        """Release everything."""
