"""Partitions that leave a data directory: deleted, or set aside for a stray.

A deleted log is let go of, and its directory gets a name that says what becomes of it
(`<topic>-<partition>.<id>-delete`); the files in it go later (`discards`). Both happen in turns of
the event loop, so a name may be wanted again before: then it is freed at once. What checkpoints
tell of a name that is gone is durably forgotten before there is one of that name again (`settle`),
or the next log would begin where the former one did. If the process ends before that, the next one
finds what they still tell of nobody (`forget`).
Source: Kafka's LogManager.asyncDelete, UnifiedLog.logDeleteDirName.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock

from logstore.directory.log_offsets import LogOffsets
from logstore.disk.barriers import A_TURN, Aside
from logstore.disk.discards import Discards
from logstore.disk.files import FileSystem
from logstore.partition.log import PartitionLog
from logstore.partition.names import partition_name

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
#: So many partitions may have left names that checkpoints still tell of.
_UNSETTLED_MAX = 4096
#: Of a name in a directory, in bytes; a topic's may have 249.
_NAME_MAX = 255

Key = tuple[str, int]


class Departures:
    """What leaves one data directory. On the event loop, but for `settle`; raises OSError."""

    def __init__(
        self,
        path: str,
        files: FileSystem,
        offsets: LogOffsets,
        discards: Discards,
        aside: Aside,
        *,
        in_memory: bool,
    ) -> None:
        self._path = path
        self._files = files
        self._offsets = offsets
        self._discards = discards
        self._aside = aside
        self._in_memory = in_memory
        #: Deleted, but not renamed yet.
        self._leaving: dict[Key, PartitionLog] = {}
        #: Renamed, with the delay after which they go.
        self._departed: list[tuple[int, str]] = []
        #: Renamed or gone, but not durably, or not durably forgotten by these checkpoints.
        self._unsettled: set[Key] = set()
        self._settling = Lock()
        self._outdated: set[str] = set()

    async def depart(self, logs: Sequence[PartitionLog]) -> None:
        """Have logs leave that nobody knows any more from this step on; durable on return."""
        for log in logs:
            log.become_unknown()
            self._leaving[log.topic, log.partition] = log
        for turn, log in enumerate(logs, 1):
            self._leave(log)
            if turn % A_TURN == 0:
                await asyncio.sleep(0)
        departed, self._departed = self._departed, []
        if departed:
            # The names alone: checkpoints are written when somebody has such a name again.
            is_much = len(self._unsettled) > _UNSETTLED_MAX
            sync_names = partial(self._files.sync_directory, self._path)
            await self._aside(self.settle if is_much or not self._outdated else sync_names)
        for delay_ms, directory in departed:
            self._discards.directories_later(delay_ms, (directory,))

    def free(self, *keys: Key) -> None:
        """Have these names be nobody's, durably, for logs to be opened. May block."""
        for key in keys:
            if key in self._leaving:
                self._leave(self._leaving[key])
        if not self._unsettled.isdisjoint(keys):
            self.settle()

    async def free_all(self) -> None:
        """Spare `free` most of the blocking."""
        if self._outdated:
            await self._aside(self.settle)

    def put_away(self, key: Key, suffix: str) -> str | None:
        """Give a partition's directory another name, and forget its offsets; returns that name, or
        None where there is no directory. Durable after `settle`.
        """
        self.forget((key,))
        name = partition_name(*key)
        if not self._files.exists(f"{self._path}/{name}"):
            return None
        target = f"{self._path}/{_name_of_leaving(key, suffix)}"
        self._files.rename(f"{self._path}/{name}", target)
        self._unsettled.add(key)
        return target

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget what checkpoints tell of these partitions: durably after `settle`."""
        for key in keys:
            if outdated := self._offsets.forget((key,)):
                self._outdated |= outdated
                self._unsettled.add(key)

    def forget_lost(self, key: Key) -> None:
        """Forget what checkpoints tell of a log whose directory is not there: to be settled before
        anything is written to the next one.
        """
        if not self._files.exists(f"{self._path}/{partition_name(*key)}"):
            self.forget((key,))

    def settle(self) -> None:
        """Make it durable what has left, and that no checkpoint tells of it. In any thread."""
        # One at a time: a name is not free before who is about to settle it has done so.
        with self._settling:
            if not self._unsettled:
                return
            # In this order: what is added meanwhile is settled the next time.
            settled = set(self._unsettled)
            outdated, self._outdated = self._outdated, set()
            for name in sorted(outdated):
                self._offsets.write(name, sync=True)
            self._files.sync_directory(self._path)
            self._unsettled -= settled

    def sweep(self) -> None:
        """Delete what was leaving when the last process ended: in a thread, from now on."""
        names = [name for name in self._files.list(self._path) if name.endswith(DELETE_SUFFIX)]
        self._discards.directories_later(0, [f"{self._path}/{name}" for name in names])

    def finish(self) -> None:
        """Have all leave that are about to. Blocks."""
        for log in list(self._leaving.values()):
            self._leave(log)
        if not self._in_memory:
            self.settle()

    def abandon(self) -> None:
        """Let go of everything, as the end of the process would."""
        for log in self._leaving.values():
            log.close()
        self._leaving.clear()

    def _leave(self, log: PartitionLog) -> None:
        """Let go of a deleted log, and take its directory's name; unless that is done."""
        key = log.topic, log.partition
        if self._leaving.get(key) is not log:
            return
        del self._leaving[key]
        log.close_deleted()
        target = None if self._in_memory else self.put_away(key, DELETE_SUFFIX)
        if target is not None:
            self._departed.append((log.config.file_delete_delay_ms, target))


def _name_of_leaving(key: Key, suffix: str) -> str:
    """Return what a directory that leaves is called: a long topic is cut short, as in Kafka."""
    topic, partition = key
    end = f"-{partition}.{uuid.uuid4().hex}{suffix}"
    return topic[: _NAME_MAX - len(end)] + end
