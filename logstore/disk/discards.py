"""Files that are of no use any more, deleted after a delay, in a thread.

They have lost their names already (`.deleted`, `-delete`), durably or not. A start finds leftovers
by those names, so nothing is lost if the process ends first. The delay (`file.delete.delay.ms`) is
for other programs that look at the files; our own readers have them open.
Source: Kafka's LogSegment.deleteIfExists, LogManager.deleteLogs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias

from logstore.disk.barriers import Aside
from logstore.disk.files import FileSystem


class Cancellable(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Cancellable]


class Discards:
    """The files and directories of one data directory that wait for their deletion.

    On the event loop.
    """

    def __init__(
        self,
        files: FileSystem,
        call_later: CallLater,
        aside: Aside,
        on_failure: Callable[[OSError], object],
    ) -> None:
        """`aside` does the work; `on_failure` is called with an error of the disk."""
        self._files = files
        self._call_later = call_later
        self._aside = aside
        self._on_failure = on_failure
        self._waiting: dict[int, Cancellable] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        self._count = 0
        self._is_stopped = False

    def files_later(self, delay_ms: int, paths: Sequence[str]) -> None:
        """Delete these files after the delay. A file that is gone by then is passed over."""
        self._later(delay_ms, partial(self._unlink, paths))

    def directories_later(self, delay_ms: int, paths: Sequence[str]) -> None:
        """Delete these directories, with all that is in them, after the delay."""
        self._later(delay_ms, partial(self._remove, paths))

    def stop(self) -> None:
        """Delete nothing more. The next start finds what is left."""
        self._is_stopped = True
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _later(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._count += 1
        number = self._count

        def begin() -> None:
            self._waiting.pop(number, None)
            task = asyncio.get_running_loop().create_task(self._perform(work))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)

        self._waiting[number] = self._call_later(delay_ms / 1000, begin)

    async def _perform(self, work: Callable[[], None]) -> None:
        try:
            await self._aside(work)
        except OSError as error:
            self._on_failure(error)

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self._is_stopped:
                # The directory's lock may be gone, and another process at work here.
                return
            with suppress(FileNotFoundError):
                self._files.unlink(path)

    def _remove(self, directories: Sequence[str]) -> None:
        for directory in directories:
            with suppress(FileNotFoundError):
                for name in self._files.list(directory):
                    try:
                        self._unlink([f"{directory}/{name}"])
                    except IsADirectoryError:  # Not made by a broker.
                        self._remove([f"{directory}/{name}"])
                if not self._is_stopped:
                    self._files.remove_directory(directory)
