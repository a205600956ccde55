"""Where syncs run, beside the event loop: in the kernel, or in a thread. And how long they take."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeAlias

from logstore.disk.files import File
from logstore.disk.linux import KernelSync, KernelSyncUnavailable
from logstore.sync.journal import Entry

#: Upper bounds of the ranges of `SyncDurations`, seconds, inclusive. One more range lies above.
BOUNDS_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

#: Called on the event loop with the error, if there was one.
Done: TypeAlias = Callable[[OSError | None], None]


class Sync:
    """What one sync does for one ledger, and the end offset that is durable after it."""

    # Defaults of the class: a request may write to hundreds of ledgers, whose syncs have no more
    # than files and `written`.
    directories: Sequence[str] = ()
    #: Whether to perform it even if the durability asks for no syncs (`flush.messages`).
    is_flush: bool = False
    #: What was appended to the files, if nothing else has to be durable. The journal may take these
    #: entries in place of a sync of the files. None: it may not.
    written: Sequence[Entry] | None = None
    #: Entries that are in no file before this sync. They become durable all together, over all
    #: ledgers, and with all that is written, or not at all. Needs a journal.
    held: Sequence[Entry] = ()

    def __init__(self, end_offset: int, files: Sequence[File] = ()) -> None:
        self.end_offset = end_offset
        self.files = files


class SyncDurations:
    """A histogram of how long syncs took. One thread writes it, others may read it."""

    __slots__ = ("counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Account for one sync."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds


class SyncExecutor(Protocol):
    """Where syncs run. Called on the event loop's thread."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this turn of the event loop."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after that time. One call at a time may be under way."""

    def sync(self, file: File, done: Done) -> bool:
        """Sync one pinned file, then call `done`. One at a time.

        Returns whether work submitted meanwhile is done beside the sync, not behind it.
        """

    def submit(self, work: Callable[[], None], done: Done) -> None:
        """Do `work` beside the event loop, in the order of the calls, then call `done`."""

    def close(self) -> None:
        """Finish the work under way and release everything. No `done` is called afterwards."""


def failure_of(work: Callable[[], None]) -> OSError | None:
    """Do `work`; return the error of the storage that ended it, None if it succeeded."""
    try:
        work()
    except OSError as error:
        return error
    return None


class BesideLoop:
    """Has the kernel sync one file, and a daemon thread do everything else.

    Both start when they are first needed, from a running loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._work: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._kernel: KernelSync | None = None
        self._has_kernel = True  # until the kernel refuses
        self._synced: Done | None = None  # of the sync that the kernel performs now

    def call_soon(self, callback: Callable[[], None]) -> None:
        (self._loop or self._running_loop()).call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timer = self._running_loop().call_later(seconds, callback)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def sync(self, file: File, done: Done) -> bool:
        descriptor = file.descriptor
        if self._has_kernel and descriptor >= 0:
            try:
                if self._kernel is None:
                    self._kernel = KernelSync()
                    self._running_loop().add_reader(
                        self._kernel.event_descriptor, self._on_synced, self._kernel
                    )
                self._kernel.begin(descriptor)
            except KernelSyncUnavailable:
                self._has_kernel = False
            except OSError as error:
                # In a later step, as any other outcome: the caller is in the middle of one.
                self.call_soon(partial(done, error))
                return False
            else:
                self._synced = done
                return True
        self.submit(file.sync, done)
        return False

    def _on_synced(self, kernel: KernelSync) -> None:
        done, self._synced = self._synced, None
        assert done is not None, "an event without a sync"
        done(kernel.result())

    def submit(self, work: Callable[[], None], done: Done) -> None:
        if self._thread is None:
            self._running_loop()
            self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
            self._thread.start()
        self._work.put((work, done))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._work.put(None)
            # The thread may be writing to files that their owners are about to close.
            self._thread.join()
            self._thread = None
        if self._kernel is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._kernel.event_descriptor)
            self._kernel.close()
            self._kernel = None

    def _run(self) -> None:
        assert self._loop is not None
        while (item := self._work.get()) is not None:
            work, done = item
            self._loop.call_soon_threadsafe(done, failure_of(work))
