"""The catalog's database in the data directory: SQLite, which several nodes may have open.

Durable when a transaction returns: WAL, synchronous=FULL; less where the broker's durability
promises less.

A node that stands still in the middle of a change holds the write lock. Another node waits for the
lock for five seconds, once. Its later changes wait for a tenth of a second, until one has found the
lock free. A change without the lock is CatalogUnavailable, and has not happened. Reads never wait.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from logstore.disk.durability import Durability
from logstore.remote.commit_store import LEASE_MS
from magnetar.storage.catalog_schema import MIGRATIONS, refusal_of_newer
from magnetar.storage.database import CatalogFailure, CatalogUnavailable
from magnetar.storage.private_file import make_private

FILE_NAME = "catalog.sqlite"

_SYNCHRONOUS = {
    Durability.FSYNC: "FULL",
    Durability.PAGE_CACHE: "OFF",
    Durability.MEMORY: "OFF",
}
#: How long a change waits for the write lock of another node, on the event loop: more than the
#: syncs that the lock is held for, less than clients wait for the loop.
_LOCK_S = 5.0
#: The same after a change that waited in vain: enough among nodes that work, whose changes take
#: milliseconds, and little for the loop while a node stands still.
_LOCKED_OUT_S = 0.1


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteDatabase:
    """One open file, or a database in memory: for no directory, or memory durability."""

    def __init__(
        self,
        directory: Path | None,
        durability: Durability = Durability.FSYNC,
        now_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        # Reentrant, since migrations run inside the opening.
        self._lock = RLock()
        self._durability = durability
        self._now_ms = now_ms
        in_memory = directory is None or durability is Durability.MEMORY
        self._path = ":memory:" if in_memory or directory is None else str(directory / FILE_NAME)
        self._connection: sqlite3.Connection
        self._is_locked_out = False

    def open(self, new_cluster_id: str) -> None:
        if self._path != ":memory:":
            # It has what SCRAM keeps of passwords. SQLite gives the files beside it the same mode.
            with self._failing("open"):
                make_private(Path(self._path))
        with self._failing("open"):
            # `isolation_level=None`: this class begins and ends transactions itself.
            # `check_same_thread=False`: topics are changed in a thread; the lock keeps its calls
            # apart.
            # `timeout`: another node may hold the write lock for the time of its sync.
            self._connection = sqlite3.connect(
                self._path, timeout=_LOCK_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._failing("open"):
                self._set_up(new_cluster_id)
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self, new_cluster_id: str) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
        # Off by default in SQLite: the configs of a deleted topic would stay behind.
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._migrate(new_cluster_id)
        now_ms = self._now_ms
        self._connection.create_function("lease_now", 0, now_ms)
        self._connection.create_function("lease_end", 0, lambda: now_ms() + LEASE_MS)
        self._connection.create_function(
            "is_leased", 1, lambda until_ms: 0 < until_ms - now_ms() <= LEASE_MS
        )

    def close(self) -> None:
        with self._failing("close"):
            self._connection.close()

    @contextmanager
    def statements(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._failing(doing):
            yield self._connection

    @contextmanager
    def snapshot(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._failing(doing):
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._failing(doing):
            # The lock is taken at once: a transaction that takes it later could fail half-way.
            self._connection.execute("BEGIN IMMEDIATE")
            self._wait_for_lock(is_locked_out=False)
            try:
                yield self._connection
            except BaseException:
                # SQLite has rolled back by itself after some errors, a full disk among them.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except CatalogFailure:
            # It says already what failed.
            raise
        except (sqlite3.Error, OSError) as error:
            # An OSError's number and file are left out: the text names the file already.
            what = getattr(error, "strerror", None) or error
            said = f"catalog {self._path}: cannot {doing}: {what}"
            if _is_busy(error):
                self._wait_for_lock(is_locked_out=True)
                raise CatalogUnavailable(
                    f"{said}: another process is in the middle of a change"
                ) from error
            if _code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                said += ". Put a copy of the file back, or let `magnetar repair` set the file aside"
            raise CatalogFailure(said) from error

    def _wait_for_lock(self, *, is_locked_out: bool) -> None:
        """Let the next change wait for the lock, for long only if this one has found it free."""
        if is_locked_out is not self._is_locked_out:
            self._is_locked_out = is_locked_out
            wait_s = _LOCKED_OUT_S if is_locked_out else _LOCK_S
            self._connection.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")

    def _migrate(self, new_cluster_id: str) -> None:
        done = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if (refusal := refusal_of_newer(self._path, done)) is not None:
            raise CatalogFailure(refusal)
        for version, script in enumerate(MIGRATIONS[done:], done + 1):
            with self.transaction("migrate") as database:
                # Not `executescript`, which would commit the transaction first.
                for statement in script.split(";"):
                    database.execute(statement)
                if version == 1:
                    # -1: the first start counts up to epoch 0.
                    database.execute("INSERT INTO cluster VALUES (1, ?, -1, 0)", (new_cluster_id,))
                # In the same transaction: after a crash a step is made whole, or once more.
                database.execute(f"PRAGMA user_version = {version}")


def _is_busy(error: Exception) -> bool:
    # Another process may also be in the middle of a recovery, or may have changed what is about to
    # be changed.
    return _code(error) == sqlite3.SQLITE_BUSY


def _code(error: Exception) -> int:
    """Return the primary code, which an extended code has in its lowest byte."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF
