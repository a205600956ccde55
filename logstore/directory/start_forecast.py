"""What the next start of a broker will find the logs to lack, found out by its own steps.

The journal is replayed and each log recovered, by the code of a start, over files that stay as they
are (`logstore.disk.overlay`). So a check and a start have one rule of what is lost.

Memory: what the journal changes, and the cuts and indexes of one log.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from uuid import UUID

from logstore.directory.closed_logs import CLOSED_LOGS, left_logs
from logstore.directory.damage import Damage, tell_damage
from logstore.directory.data_directory import DataDirectory, Key, partition_name
from logstore.directory.journal_replay import Replayed, replay_journal
from logstore.disk.barriers import perform
from logstore.disk.files import FileSystem
from logstore.disk.overlay import OverlayFiles
from logstore.partition.log_config import LogConfig
from logstore.segments.batch_recovery import Recovery
from logstore.segments.ledger import GONE, UNREADABLE
from logstore.sync.journal import JournalDamaged


class StartForecast:
    """The next start over one log directory whose lock the caller holds. Raises OSError."""

    def __init__(
        self,
        files: FileSystem,
        path: str,
        *,
        was_clean: bool,
        recovery_points: Mapping[Key, int],
        start_offsets: Mapping[Key, int],
    ) -> None:
        #: The files as the replay of the journal will leave them.
        self.files = OverlayFiles(files)
        self.replayed = Replayed()
        self._path, self._was_clean = path, was_clean
        self._recovery_points, self._start_offsets = recovery_points, start_offsets
        #: The logs that the start takes over as a clean stop has noted them, without a look.
        self._unchanged: Set[Key] = frozenset()
        data = DataDirectory(path, self.files)
        try:
            if not was_clean:
                self.replayed = replay_journal(
                    self.files, path, data.read_topic_id, accepts_damage=True
                )
            elif (closed := data.top.read(CLOSED_LOGS)) is not None:
                self._unchanged = left_logs(self.files, path, closed).unchanged.keys()
        except JournalDamaged:
            # No start goes on from it: a repair keeps it, and the logs are what they are.
            self.replayed = Replayed()
        except OSError as error:
            # The same: a file cannot be opened or read. The check of that file tells which.
            if error.errno not in UNREADABLE | GONE:
                raise
            self.replayed = Replayed()

    def damage_of(self, key: Key, topic_id: UUID | None) -> Damage | None:
        """Return what the start will tell of a log, which may be gone; None: nothing.

        `topic_id` is the one that the log is opened with: that of the catalog, if that has one.
        """
        if key in self._unchanged:
            return None
        told: list[Damage] = []
        name = partition_name(*key)
        data = DataDirectory(self._path, self.files)
        journaled_end = self.replayed.end_of(name, topic_id)
        recovery = Recovery(
            OverlayFiles(self.files),
            f"{self._path}/{name}",
            LogConfig(),
            self._start_offsets.get(key, 0),
            self._recovery_points.get(key, 0),
            self._was_clean,
            partial(tell_damage, told.append, key, journaled_end, data, self._start_offsets),
        )
        try:
            recovered = perform(recovery.files, recovery.steps())
        except OSError as error:
            # The start ends here. The check of the log tells where.
            if error.errno not in UNREADABLE:
                raise
        else:
            for segment in (*recovered.trimmed, *recovered.segments):
                segment.close()
        return told[-1] if told else None
