"""A disk with faults: syncs that fail, room that runs out. Everything else is the real disk's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, File
from logstore.sync.sync_executors import BesideLoop, Done
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.storage import open_files
from magnetar.storage.logs import Logs


class DiskFaults:
    """What is wrong with the disk of one broker."""

    def __init__(self) -> None:
        self.fails_sync = False
        self.is_full = False

    def open_logs(
        self, path: str, config: BrokerConfig, clock: Clock, on_failure: Callable[..., None]
    ) -> Logs:
        """Open the logs as `Logs` does, on this disk."""
        if Durability(config.durability) is Durability.MEMORY:
            # It syncs nothing, and fills no disk.
            return Logs.in_directory(path, config, clock, on_failure)
        files = _Files(path, self)
        return Logs.in_directory(
            path, config, clock, on_failure, files=files, executor=_Syncs(self)
        )


class _Files(DiskFiles):
    def __init__(self, root: str, faults: DiskFaults) -> None:
        super().__init__(root, open_max=open_files.logs_max())
        self._faults = faults

    def free_bytes(self) -> int:
        return 0 if self._faults.is_full else super().free_bytes()


class _Syncs(BesideLoop):
    """Syncs, of which each fails while `fails_sync` is set."""

    def __init__(self, faults: DiskFaults) -> None:
        super().__init__()
        self._faults = faults

    def sync(self, file: File, done: Done) -> bool:
        if not self._faults.fails_sync:
            return super().sync(file, done)
        self.call_soon(partial(done, _failed()))
        return False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        if self._faults.fails_sync:
            self.call_soon(partial(done, _failed()))
        else:
            super().submit(work, done)


def _failed() -> OSError:
    return OSError(errno.EIO, f"{os.strerror(errno.EIO)} (a fault of the test)")
