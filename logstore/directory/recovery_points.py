"""When the recovery points of a directory's logs are written to their checkpoint.

A recovery point says where recovery of a log's bytes may begin. It moves with the syncs of its log.
The points that have moved are written together, at most once a second. So the checkpoint is older
than the truth after a crash, and recovery reads more than it needs. A clean stop writes the
checkpoint itself (`log_directory`). Source: Kafka's LogManager.checkpointLogRecoveryOffsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from logstore.directory.log_offsets import LogOffsets
from logstore.disk.checkpoints import RECOVERY_POINTS
from logstore.disk.discards import CallLater, Cancellable
from logstore.partition.log import PartitionLog

#: Recovery points that have moved are written together, at most so often.
_CHECKPOINT_AFTER_S = 1.0


class RecoveryPoints:
    """The recovery points that have moved, until they are written."""

    def __init__(
        self,
        offsets: LogOffsets,
        call_later: CallLater,
        write_aside: Callable[[str], Coroutine[None, None, None]],
    ) -> None:
        """`write_aside` writes a checkpoint of `offsets` without holding up the event loop."""
        self._offsets = offsets
        self._call_later = call_later
        self._write_aside = write_aside
        self._due: Cancellable | None = None
        self._writing: asyncio.Task[None] | None = None

    def note(self, log: PartitionLog) -> None:
        """Write the recovery point of `log`, which has moved, soon."""
        self._offsets.recovery_points[log.topic, log.partition] = log.recovery_point
        self._schedule()

    def _schedule(self) -> None:
        if self._due is None:
            self._due = self._call_later(_CHECKPOINT_AFTER_S, self._write)

    def _write(self) -> None:
        self._due = None
        # One write at a time: the next one has what moved meanwhile.
        if self._writing is not None:
            self._schedule()
            return
        loop = asyncio.get_running_loop()
        self._writing = loop.create_task(self._write_aside(RECOVERY_POINTS))
        self._writing.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled():
            # Retrieved, so that asyncio does not report it: group commit has failed with it, and
            # that stops the process.
            task.exception()

    async def stop(self) -> None:
        """Give up the write that is due; return when the one under way has ended."""
        self.abandon()
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    def abandon(self) -> None:
        """Give up the write that is due, if one is."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
