"""The medium of ledgers in files: a sync writes the journal, or syncs the files themselves.

With a journal, a sync that covers little writes it there, once (`logstore.sync.journal`). Otherwise
one dirty file is synced by fdatasync, more by one syncfs, or one by one where there is none.
Figures and alternatives: docs/decisions/0002-group-commit.md, 0018-journal.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from logstore.disk.barriers import Barrier, sync_barriers
from logstore.disk.files import File, FileSystem
from logstore.sync.journal import JOURNALED_BYTES_MAX, Entry, Journal
from logstore.sync.sync_executors import Done, Sync, SyncExecutor


class FileSyncs:
    """Makes durable what ledgers have written to files. One `perform` at a time is under way."""

    def __init__(
        self,
        files: FileSystem,
        executor: SyncExecutor,
        sync_all_from: int,
        on_error: Callable[[OSError], object],
    ) -> None:
        """`on_error` is told of a failed sync that no `perform` waits for."""
        self._files = files
        self._executor = executor
        self._sync_all_from = sync_all_from
        self._on_error = on_error
        #: Where small syncs are written. None: every sync syncs the files.
        self.journal: Journal | None = None
        self._pinned: Sequence[File] = ()  # what the thread is syncing
        self._is_flushing = False  # the files of the journal's entries are being synced

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Done,
        _make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        """Make all of these durable, then call `done`. `settles`: in their own files."""
        journal = self.journal
        entries = None if journal is None or settles else _entries_of(syncs)
        if entries is None or journal is None:
            work = self._work_of(syncs, settles=settles)
            self._executor.submit(work, partial(self._synced, done))
            return
        try:
            is_written = journal.write(entries)
        except OSError as error:
            done(error)
            return
        if not is_written:
            self._executor.submit(partial(journal.append, entries), done)
        elif (
            self._executor.sync(journal.file, done)
            and journal.is_flush_due
            and not self._is_flushing
        ):
            self._flush_beside(journal)

    def _flush_beside(self, journal: Journal) -> None:
        """Sync the files of the journal's entries, beside the appends: none waits for that."""
        self._is_flushing = True
        journal.note_flush()
        self._executor.submit(self._files.sync_all, self._flushed)

    def _flushed(self, error: OSError | None) -> None:
        self._is_flushing = False
        if error is not None:
            self._on_error(error)

    def _work_of(self, syncs: Sequence[Sync], *, settles: bool) -> Callable[[], None]:
        """Return the work of the thread for a sync of the files themselves."""
        entries = [entry for sync in syncs for entry in sync.held]
        files = [file for sync in syncs for file in sync.files]
        directories = {directory for sync in syncs for directory in sync.directories}
        for file in files:
            # The ledger may be closed, or the segment trimmed, while the thread syncs the file.
            file.pin()
        self._pinned = files

        def work() -> None:
            self._sync(files, directories, settles=settles)
            if self.journal is not None and (entries or settles):
                # After the sync: held entries must not be durable before what was written.
                self.journal.append(entries)

        return work

    def _sync(self, files: list[File], directories: set[str], *, settles: bool) -> None:
        """In the thread."""
        if self.journal is None:
            sync_barriers(self._files, [Barrier(files, list(directories))], self._sync_all_from)
        elif settles or directories or len(files) >= self._sync_all_from:
            # A new directory entry is of use only with the topic id, which is written beside it and
            # not synced: by the id a start knows whose entries the journal has.
            self.journal.begin_round()
        else:
            sync_barriers(self._files, [Barrier(files)])

    def _synced(self, done: Done, error: OSError | None) -> None:
        for file in self._pinned:
            file.unpin()
        self._pinned = ()
        done(error)

    def close(self) -> None:
        """Close the journal, if there is one."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _entries_of(syncs: Sequence[Sync]) -> list[Entry] | None:
    """Return the entries that the journal takes in place of a sync of the files.

    None: the files have to be synced, since other things must be durable too, or it is too much.
    """
    entries: list[Entry] = []
    written_bytes = 0
    for sync in syncs:
        if sync.written is None:
            return None
        for entry in sync.written:
            written_bytes += len(entry.data)
            entries.append(entry)
        entries += sync.held
    return None if written_bytes > JOURNALED_BYTES_MAX else entries
