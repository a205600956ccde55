"""What a clean stop leaves to the next start: its mark, and the state of every log.

The mark is Kafka's `.kafka_cleanshutdown`: where it lies, no bytes have to be scanned.
`.magnetar-closed-logs` (`closed_logs`) is written just before the mark and counts only beside it. A
log that it describes, and that nothing has changed since, is opened without reading its files. A
start deletes both before anything is written: from then on a crash leaves no mark.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.directory.closed_logs import CLOSED_LOGS, encode_closed_logs, left_logs, stamps_of
from logstore.directory.data_directory import DataDirectory, Key
from logstore.disk.checkpoints import CLEAN_SHUTDOWN, encode_clean_shutdown
from logstore.disk.files import FileSystem
from logstore.partition.log import PartitionLog
from logstore.partition.state_recovery import ClosedLog
from logstore.segments.file_ledger import FileLedger


class CleanStop:
    """The last stop of a directory, as the start has found it, and the stop to come."""

    def __init__(self, path: str, files: FileSystem, data: DataDirectory) -> None:
        self._path, self._files, self._data = path, files, data
        #: Whether the last stop was clean.
        self.was_clean = False
        #: The logs that are as the last clean stop left them and not opened yet.
        self.closed: dict[Key, ClosedLog] = {}
        #: The `.log` files that another program has deleted or cut since then.
        self.missing_segments: dict[Key, list[str]] = {}

    def take(self) -> None:
        """Read what the last stop has left, and delete it. Blocks."""
        top = self._data.top
        self.was_clean = self._files.exists(f"{self._path}/{CLEAN_SHUTDOWN}")
        if self.was_clean:
            closed = top.read(CLOSED_LOGS)
            if closed is not None:
                self.closed, self.missing_segments = left_logs(self._files, self._path, closed)
        # From here on a stop is not clean, until `leave` marks it so again.
        top.delete(CLEAN_SHUTDOWN)
        top.delete(CLOSED_LOGS)

    def leave(self, logs: Mapping[Key, PartitionLog]) -> None:
        """Write what the next start need not find out of `logs`, and then the mark. Blocks.

        Call it last: everything else of the directory is durable, and the logs are closed.
        """
        closed = []
        for key, log in logs.items():
            ledger = log.ledger.as_closed() if isinstance(log.ledger, FileLedger) else None
            found = None if ledger is None else log.as_closed(ledger)
            if found is not None:
                segments = found.ledger.segments
                stamps = stamps_of(self._files, self._data.directory_of(key), segments)
                if stamps is not None:
                    closed.append((key, stamps, found))
        top = self._data.top
        top.write(CLOSED_LOGS, encode_closed_logs(closed), sync=True)
        top.write(CLEAN_SHUTDOWN, encode_clean_shutdown(), sync=True)
