"""A primary and its synchronous standby, which take each other's place."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from compat_tests.waiting import eventually
from tools.postgresql import PostgresServer

_PATIENCE_S = 60.0
_NAMES = "synchronous_standby_names"


class Database:
    """The primary of the moment; `on_moved` hears of each port that becomes the primary's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self._primary = PostgresServer(self._place(), max_connections="100")
        self._standby: PostgresServer | None = None
        self.on_moved: Callable[[int], None] = lambda port: None

    @property
    def port(self) -> int:
        return self._primary.port

    def start(self) -> None:
        """Return when commits wait for the standby."""
        self._primary.start()
        self._follow()

    def end(self) -> None:
        """Stop both at once."""
        for server in (self._primary, self._standby):
            if server is not None:
                server.stop(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop the primary without any ceremony, and start it again: it recovers."""
        self._primary.stop(signal.SIGQUIT)
        self._primary.start()

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and give that a standby of its own."""
        assert self._standby is not None
        self._primary.stop(signal.SIGKILL)
        self._primary, self._standby = self._standby, None
        self._primary.promote()
        # The setting came with the copy. Until there is another standby nothing could be committed.
        self._run(f"ALTER SYSTEM RESET {_NAMES}", "SELECT pg_reload_conf()")
        self.on_moved(self._primary.port)
        self._follow()

    @contextmanager
    def standby_away(self) -> Iterator[None]:
        """Let no commit return while the block runs."""
        assert self._standby is not None
        self._standby.pause()
        try:
            yield
        finally:
            self._standby.resume()

    def end_backends(self) -> None:
        """End every connection of nodes, in the middle of whatever it does."""
        self._run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'magnetar%'"
        )

    def size_mb(self) -> float:
        """Return the size of the database."""
        with psycopg.connect(self._primary.url) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return float(row[0]) / (1 << 20)

    def _follow(self) -> None:
        """Start a standby, and let commits wait for it."""
        former = self._directory / f"server-{self._made - 2}"
        self._standby = self._primary.standby(self._place())
        self._standby.start()
        eventually(lambda: self._ask("SELECT count(*) FROM pg_stat_replication"), _PATIENCE_S)
        self._run(f"ALTER SYSTEM SET {_NAMES} = '*'", "SELECT pg_reload_conf()")
        shutil.rmtree(former, ignore_errors=True)

    def _place(self) -> Path:
        self._made += 1
        return self._directory / f"server-{self._made}"

    def _ask(self, question: str) -> int:
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())
