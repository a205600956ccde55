"""Procedures that wait for the disk in step, so that one sync serves many of them.

A procedure is a generator. It works up to a point at which something must be durable before it goes
on, and there yields a `Barrier`, which names the files. Ten thousand partitions that are opened or
closed together wait for one sync at the first barrier of all, and for one at the second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from logstore.disk.files import File, FileSystem
from logstore.disk.pools import HOUSEKEEPING

Result = TypeVar("Result")

#: The number of dirty files and directories from which on one syncfs is quicker than a sync each.
SYNC_ALL_FROM = 2
#: How many procedures go one step further in a turn of the event loop, a few milliseconds long.
A_TURN = 8


class Barrier(NamedTuple):
    """What must be durable before the procedure goes on. Its files stay open until then.

    A directory may be named more than once, and may be gone.
    """

    files: Sequence[File] = ()
    directories: Sequence[str] = ()

    @property
    def is_turn(self) -> bool:
        """Whether nothing must be durable: others get their turn."""
        return not (self.files or self.directories)


TURN = Barrier()
Procedure: TypeAlias = Generator[Barrier, None, Result]
#: Does blocking work beside the event loop, and returns when it is done.
Aside: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]


async def in_thread(work: Callable[[], None]) -> None:
    """Do blocking work in a thread."""
    await HOUSEKEEPING.run(work)


def sync_barriers(
    file_system: FileSystem, barriers: Iterable[Barrier], sync_all_from: int = SYNC_ALL_FROM
) -> None:
    """Make everything durable that the barriers name. Blocks; raises OSError, which is final."""
    files: list[File] = []
    directories: dict[str, None] = {}
    for barrier in barriers:
        files += barrier.files
        directories |= dict.fromkeys(barrier.directories)
    if len(files) + len(directories) >= sync_all_from and file_system.can_sync_all:
        file_system.sync_all()
        return
    # Files first: a durable name must not stand for bytes that are not.
    for file in files:
        file.sync()
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):  # Its topic was deleted meanwhile.
            file_system.sync_directory(directory)


def perform(file_system: FileSystem, procedure: Procedure[Result]) -> Result:
    """Do the whole procedure at once, and return its result. Blocks; raises OSError."""
    return _done(procedure, lambda barrier: sync_barriers(file_system, (barrier,)))


def at_once(procedure: Procedure[Result]) -> Result:
    """Do the whole of a procedure for which nothing must be durable."""

    def pass_turn(barrier: Barrier) -> None:
        assert barrier.is_turn, f"{barrier} where nothing is written"

    return _done(procedure, pass_turn)


def _done(procedure: Procedure[Result], at_barrier: Callable[[Barrier], None]) -> Result:
    while True:
        try:
            barrier = next(procedure)
        except StopIteration as end:
            result: Result = end.value
            return result
        at_barrier(barrier)


def in_step(procedures: Iterable[Procedure[None]]) -> Procedure[None]:
    """Return one procedure that does all `procedures`, with as many barriers as the longest has."""
    under_way = list(procedures)
    while under_way:
        reached = [(procedure, next(procedure, None)) for procedure in under_way]
        barriers = [barrier for _, barrier in reached if barrier is not None]
        if barriers:
            yield Barrier(
                [file for barrier in barriers for file in barrier.files],
                [name for barrier in barriers for name in barrier.directories],
            )
        under_way = [procedure for procedure, barrier in reached if barrier is not None]


async def perform_together(
    file_system: FileSystem, procedures: Iterable[Procedure[Result]], aside: Aside = in_thread
) -> list[Result]:
    """Do all procedures in step; return their results in the same order. Raises OSError.

    The event loop gets its turns in between, and during the syncs.
    """
    results: dict[int, Result] = {}
    under_way = dict(enumerate(procedures))
    count = len(under_way)
    while under_way:
        barriers = []
        for turn, (number, procedure) in enumerate(list(under_way.items()), 1):
            try:
                barrier = next(procedure)
                # To its first real barrier before the next one: what it reads from stays few.
                while barrier.is_turn:
                    await asyncio.sleep(0)
                    barrier = next(procedure)
                barriers.append(barrier)
            except StopIteration as end:
                results[number] = end.value
                del under_way[number]
            if turn % A_TURN == 0:
                await asyncio.sleep(0)
        if barriers:
            await aside(partial(sync_barriers, file_system, barriers))
    return [results[number] for number in range(count)]
