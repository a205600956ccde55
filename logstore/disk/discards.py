"""The deletion, after a delay and in a thread, of files that are of no use any more.

Such files already have a name that ends in `.deleted`, or a directory whose name ends in `-delete`,
durably or not. A start finds the leftovers of an earlier process by those names. The delay
(`file.delete.delay.ms`) is for other programs that read the files; our own readers hold them open.
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

    All methods run on the event loop, or where `aside` works.
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
                # The directory's lock may be released, and another process may work here.
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
