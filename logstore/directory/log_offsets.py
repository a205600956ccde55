"""Three checkpoints of Kafka's: what one directory remembers of the offsets of all its logs.

Recovery points, log start offsets, and first dirty offsets (where compaction goes on). A checkpoint
may be older than the truth, never newer. A torn one counts as absent, which costs time only; but
where logs start is synced before it has its name, so that one is torn by a disk that fails alone.
Source: Kafka's OffsetCheckpointFile.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from logstore.disk.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    CorruptCheckpoint,
    Offsets,
    decode_offsets,
    encode_offsets,
)
from logstore.segments.attachments import SmallFiles


class LogOffsets:
    """The three offsets of every log that has any, by topic and partition."""

    def __init__(self, top: SmallFiles) -> None:
        """`top`: the small files that lie in the directory itself."""
        self._top = top
        self._writing = Lock()
        self.recovery_points: Offsets = {}
        self.start_offsets: Offsets = {}
        self.first_dirty_offsets: Offsets = {}

    def read(self) -> bool:
        """Read what the last process wrote. Return whether start offsets are lost. Blocks."""
        self.recovery_points = self._read(RECOVERY_POINTS) or {}
        start_offsets = self._read(LOG_START_OFFSETS)
        self.start_offsets = start_offsets or {}
        self.first_dirty_offsets = self._read(CLEANER_OFFSETS) or {}
        return start_offsets is None

    def _read(self, name: str) -> Offsets | None:
        """Return what a checkpoint says; None: it is damaged."""
        data = self._top.read(name)
        try:
            return {} if data is None else decode_offsets(data)
        except CorruptCheckpoint:
            return None

    def keys(self) -> set[tuple[str, int]]:
        """Return the logs of which `tells_of` is true."""
        known = {*self.recovery_points, *self.start_offsets, *self.first_dirty_offsets}
        return {key for key in known if self.tells_of(key)}

    def tells_of(self, key: tuple[str, int]) -> bool:
        """Whether anything is said of a log but that it begins at 0."""
        return (
            key in self.start_offsets
            or key in self.first_dirty_offsets
            or self.recovery_points.get(key, 0) > 0
        )

    def forget(self, keys: Iterable[tuple[str, int]]) -> set[str]:
        """Forget these logs; return the names of the checkpoints that told of any of them."""
        changed: set[str] = set()
        for key in keys:
            if self.recovery_points.pop(key, 0) > 0:
                changed.add(RECOVERY_POINTS)
            if self.start_offsets.pop(key, None) is not None:
                changed.add(LOG_START_OFFSETS)
            if self.first_dirty_offsets.pop(key, None) is not None:
                changed.add(CLEANER_OFFSETS)
        return changed

    def write(self, name: str, *, sync: bool) -> None:
        """Write one checkpoint with its offsets as they are now. Blocks; in any thread.

        A later write never holds older offsets, so a start offset that is durable stays durable.
        """
        offsets = {
            RECOVERY_POINTS: self.recovery_points,
            LOG_START_OFFSETS: self.start_offsets,
            CLEANER_OFFSETS: self.first_dirty_offsets,
        }[name]
        with self._writing:
            # Copied in one step of the interpreter: the event loop goes on changing them.
            self._top.write(name, encode_offsets(offsets.copy()), sync=sync)
