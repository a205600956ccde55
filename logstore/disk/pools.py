"""Threads for blocking work, apart by kind: a slow disk for one kind must not stop the others.

The pools of the log store are here; others stand in the module whose work they do.

A pool of clients' jobs takes a bounded number, those that run among them, and refuses more, so that
no client queues work without end. The broker's own jobs are never refused: each of them is owed.
A job may take several turns: it keeps its place between them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from wire.error_code import ErrorCode
from wire.errors import KafkaError

_Result = TypeVar("_Result")


class Pool:
    """A few threads that start when they are needed. Used on the event loop's thread."""

    def __init__(
        self,
        name: str,
        threads: int,
        jobs_max: int = sys.maxsize,
        refusal: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
    ) -> None:
        """`refusal` answers a request for which there is no place: a code that clients retry."""
        self.name = name
        #: The jobs that wait or run. A cancelled job that runs already is not counted any more.
        self.jobs = 0
        self._jobs_max = jobs_max
        self._refusal = refusal
        self._executor = ThreadPoolExecutor(threads, name)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Do `work` in a thread and return its result. Raises KafkaError where the pool is full."""
        with self.place():
            return await self.turn(work)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold the place of one job. Raises KafkaError where the pool is full."""
        if self.jobs >= self._jobs_max:
            raise KafkaError(self._refusal, f"{self.jobs} jobs wait in the pool {self.name}")
        self.jobs += 1
        try:
            yield
        finally:
            self.jobs -= 1

    async def turn(self, work: Callable[[], _Result]) -> _Result:
        """Do a part of a job that has its place, behind all work that waits now."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


#: Reads of records that are not in the page cache, at most one for each connection.
COLD_READS = Pool("cold-reads", 8, 1000, ErrorCode.KAFKA_STORAGE_ERROR)
#: Checkpoints, unlinks, syncs of opening, closing and deleting, what retention reads: the broker's
#: own work.
HOUSEKEEPING = Pool("housekeeping", 4)
