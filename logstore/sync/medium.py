"""The seam below group commit: files with a journal, or a shared store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from logstore.disk.files import StorageFailure
from logstore.sync.sync_executors import Sync

#: Called on the event loop when a sync has ended, with its error; None: it succeeded.
Performed: TypeAlias = Callable[[OSError | StorageFailure | None], None]


class Medium(Protocol):
    """Makes durable what ledgers have written."""

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        """Make all of these durable, then call `done`, in the order of the calls.

        The next call comes after `done`, or after `make_room`, which an implementation may call
        earlier. `settles`: do also what earlier calls have left for later. `syncs` may be empty
        then.
        """

    def close(self) -> None:
        """Release everything."""
