"""A process that has a log directory open on a simulated disk: syncs and timers go by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from logstore.directory.log_directory import LogDirectory
from logstore.disk.barriers import Aside
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.sync.group_commit import GroupCommit
from tests.logstore.compaction import perform
from tests.logstore.simulated_disk import SimulatedDisk
from tests.logstore.simulated_executors import SteppedExecutor

NOW_MS = 1_000


class Timers:
    """`call_later` by hand: nothing is due before `run`."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def call_later(self, _delay: float, callback: Callable[[], None]) -> Timers:
        self._due.append(callback)
        return self

    def cancel(self) -> None:
        self._due.clear()

    def run(self) -> None:
        if self._due:
            asyncio.run(self._run())

    async def _run(self) -> None:
        while self._due:
            self._due.pop()()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await task


async def at_once(work: Callable[[], None]) -> None:
    """Do what a thread would."""
    work()


class LogProcess:
    """What a start makes and an end takes away; `begin` again is the next process."""

    directory: LogDirectory
    executor: SteppedExecutor
    failures: list[StorageFailure]
    timers: Timers

    def begin(
        self,
        disk: SimulatedDisk,
        config: LogConfig,
        durability: Durability = Durability.FSYNC,
        now_ms: Callable[[], int] = lambda: NOW_MS,
        aside: Aside = at_once,
        **options: Any,
    ) -> None:
        """Open the directory; `options` are LogDirectory's."""
        self.executor = SteppedExecutor()
        self.failures = []
        self.timers = Timers()
        commit = GroupCommit(
            disk, durability, on_failure=self.failures.append, executor=self.executor
        )
        self.directory = LogDirectory(
            "/data",
            disk,
            commit,
            config,
            steady_ms=now_ms,
            call_later=self.timers.call_later,
            aside=aside,
            **options,
        )

    def persist_start(self, log: PartitionLog, start_offset: int) -> None:
        """Make it durable that the log starts there."""
        perform(self.directory.persist_start_offsets([(log, start_offset)]))

    def stop(self) -> None:
        """End in order, with all that is due synced."""
        self.executor.run()
        asyncio.run(self.directory.close())
