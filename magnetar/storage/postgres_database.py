"""The catalog's database of a cluster: PostgreSQL, which every node has open.

A transaction first locks the one row of `cluster`, so transactions of all nodes follow one another,
and the numbers of changes become visible in their order. A call takes two seconds at the most: then
its connection is given up, and what it asked for may have happened (CatalogUnavailable). The next
call connects again. After a connection that could not be made, calls fail at once for a second.

psycopg is imported where a cluster is served, and nowhere else.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum
from threading import RLock
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from logstore.remote.postgres_url import KEPT_ALIVE, STANDBY_WAIT, UNLIMITED, Hosts
from magnetar.storage.database import CatalogFailure, CatalogUnavailable, Rows
from magnetar.storage.postgres_schema import MIGRATIONS, SCHEMA
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: How long one call may take: it may run on the event loop.
_CALL_S = 2.0
_RETRY_S = 1.0
_T = TypeVar("_T")
_SESSION = (
    f"{UNLIMITED}; SET search_path = {SCHEMA};"
    " SET statement_timeout = 2000; SET lock_timeout = 2000;"
    " SET idle_in_transaction_session_timeout = 10000; SET synchronous_commit = on;"
    # Else it may hide that a wait for a standby was cancelled.
    " SET client_min_messages = warning;"
    # What waited for another change sees it.
    " SET default_transaction_isolation = 'read committed'; "
    + "; ".join(f"SET {name} = {value}" for name, value in KEPT_ALIVE.items())
)
_SESSION_PID = "SELECT pg_backend_pid()"
#: Raised by a call that its connection or the server has ended. Two limits of the server, which end
#: the session of a node that stood still, have codes of another class.
_ENDED = (
    psycopg.OperationalError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
_PRIMARY = (
    "If the server is a standby, name the primary, or several hosts with"
    " target_session_attrs=read-write"
)
_GRANTS = (
    "Make the tables by `magnetar cluster init`, as a role that may; then GRANT USAGE ON SCHEMA"
    f" {SCHEMA} and ALL ON ALL TABLES IN SCHEMA {SCHEMA} to this role, if it is another one"
)
#: Any number that no other program uses: held while tables are made.
_MIGRATION_LOCK = 7_236_514_400_912


class Tables(Enum):
    """What becomes of tables that are missing, or of an older version, when they are opened."""

    LEFT = "left"
    """The opening is refused."""
    MADE_AT_REST = "made at rest"
    """They are made, or brought up to date unless nodes of the older version live."""
    MADE = "made"
    """They are made, or brought up to date. Nodes of the older version run on, and cannot start
    again."""


class NoAnswer(psycopg.OperationalError):
    """The server has not answered in time."""


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for no answer longer than `_CALL_S`."""

    def wait(self, gen: PQGen[_T], interval: float = 0.0, timeout: float | None = None) -> _T:
        """Drive a conversation of psycopg's to its end. Raises NoAnswer."""
        deadline_s = time.monotonic() + _CALL_S
        try:
            event = next(gen)
            with selectors.DefaultSelector() as selector:
                while True:
                    key = selector.register(self.pgconn.socket, event)
                    ready = selector.select(max(deadline_s - time.monotonic(), 0))
                    selector.unregister(key.fileobj)
                    if not ready:
                        raise NoAnswer(f"no answer within {_CALL_S:g} s")
                    event = gen.send(ready[0][1])
        except StopIteration as end:
            result: _T = end.value
            return result


class _Statements:
    """Runs SQL with `?` for values."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        # No literal of ours has a question mark or a percent sign in it.
        text = statement.replace("?", "%s")
        # `encode`: psycopg's type asks for a literal; all statements are constants of ours.
        return self._connection.execute(text.encode(), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        text = statement.replace("?", "%s")
        self._connection.cursor().executemany(text.encode(), rows)


class PostgresDatabase:
    """One connection, made again when it is lost."""

    def __init__(
        self, url: str, *, tables: Tables = Tables.MADE_AT_REST, owner: str | None = None
    ) -> None:
        """`url`: postgresql://, or key=value pairs as libpq has them. Raises CatalogFailure.

        `owner`: the place that the caller holds (`node_ids`): nodes of its own, which were killed,
        have a lease for a while, and do not live.
        """
        self._tables = tables
        self._owner = owner
        # Reentrant, since migrations run inside the opening.
        self._lock = RLock()
        self._connection: _BoundedConnection | None = None
        self._retry_s = 0.0
        #: The server's warning that this call's wait for a standby was cancelled; empty: none.
        self._unproven = ""
        try:
            self.shown = shown(url)
            self._hosts = Hosts(url)
        except psycopg.Error:
            # What psycopg says of it has the whole text, with the password.
            raise CatalogFailure(
                "--storage is not a database's URL: write postgresql://USER@HOST:PORT/DATABASE"
            ) from None

    def open(self, new_cluster_id: str) -> None:
        try:
            with self._failing("open"):
                self._migrate(new_cluster_id)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._give_up()

    @contextmanager
    def statements(self, doing: str) -> Iterator[_Statements]:
        with self._failing(doing):
            yield _Statements(self._connected())

    @contextmanager
    def snapshot(self, doing: str) -> Iterator[_Statements]:
        with self._failing(doing), self._begun("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            yield _Statements(self._connected())

    @contextmanager
    def transaction(self, doing: str) -> Iterator[_Statements]:
        with self._failing(doing), self._begun("BEGIN"):
            connection = self._connected()
            connection.execute("SELECT 1 FROM cluster FOR UPDATE")
            yield _Statements(connection)

    def is_direct(self) -> bool:
        """Return whether the server sees this connection as it is made here.

        It does not where a pooler, a proxy or a translation of addresses stands between.
        """
        with self.statements("look at the connection") as statements:
            (seen,) = statements.execute("SELECT inet_client_port()").fetchone()
            assert self._connection is not None
            descriptor = os.dup(self._connection.pgconn.socket)
        with socket.socket(fileno=descriptor) as own:
            # A socket in the file system has no port.
            port = None if own.family == socket.AF_UNIX else own.getsockname()[1]
        return bool(seen == port)

    def is_pooled(self) -> bool:
        """Return whether a pooler stands between that may change the session at each transaction.

        Then this connection meets several sessions, or one that another connection meets too.
        """
        own, others = set[Any](), set[Any]()
        with (
            closing(self._second()) as other,
            self.statements("look at the sessions") as statements,
        ):
            # More than once: other clients of the pooler may hold the shared session at times.
            for _ in range(3):
                own.update(statements.execute(_SESSION_PID).fetchall())
                others.update(other.execute(_SESSION_PID.encode()).fetchall())
                own.update(statements.execute(_SESSION_PID).fetchall())
        return len(own) > 1 or not own.isdisjoint(others)

    def _second(self) -> _BoundedConnection:
        """Return another connection. This one is kept where the server has no more."""
        try:
            return self._connect()
        except psycopg.OperationalError as error:
            raise CatalogUnavailable(self._said("connect", error)) from error

    def check_sessions(self) -> None:
        """Raise CatalogFailure if this connection has no session of its own."""
        if self.is_pooled():
            raise CatalogFailure(
                f"{self.shown} is a pooler that pools transactions, so the settings of a session"
                " are lost. Let it pool sessions (PgBouncer: pool_mode = session), or name the"
                " server itself."
            )

    # --- the connection

    @contextmanager
    def _begun(self, begin: str) -> Iterator[None]:
        """Run the block in a transaction, and commit it."""
        connection = self._connected()
        connection.execute(begin.encode())
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _connected(self) -> _BoundedConnection:
        """Return a connection that answers: one that was lost while it was idle is replaced."""
        if self._connection is not None and not self._connection.closed and self._is_alive():
            return self._connection
        if time.monotonic() < self._retry_s:
            raise psycopg.OperationalError("it could not be reached a moment ago")
        try:
            self._connection = self._connect()
            self._connection.add_notice_handler(self._hear)
            self._connection.execute(_SESSION.encode())
        except psycopg.OperationalError:
            self._retry_s = time.monotonic() + _RETRY_S
            self._give_up()
            raise
        return self._connection

    def _connect(self) -> _BoundedConnection:
        failures: dict[str, psycopg.OperationalError] = {}
        for address in self._hosts:
            try:
                connection = self._connect_to(address)
            except psycopg.OperationalError as failure:
                failures[shown(address)] = failure
            else:
                self._hosts.note_serving(address)
                return connection
        if len(failures) == 1:
            # `_said` begins with its address.
            raise next(iter(failures.values()))
        raise psycopg.OperationalError(
            "\n".join(f"{where}: {failure}" for where, failure in failures.items())
        )

    @staticmethod
    def _connect_to(address: str) -> _BoundedConnection:
        return _BoundedConnection.connect(
            address,
            autocommit=True,
            connect_timeout=int(_CALL_S),
            # Whatever the URL and the database say: all texts are UTF-8.
            client_encoding="UTF8",
            # A prepared statement belongs to a session, which a pooler may change.
            prepare_threshold=None,
            application_name="magnetar catalog",
        )

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        if said.source_function == STANDBY_WAIT:
            self._unproven = str(said.message_primary)

    def _is_alive(self) -> bool:
        """Whether nothing has arrived that says that the server closed the connection."""
        assert self._connection is not None
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.pgconn.socket, selectors.EVENT_READ)
            # What arrives while nothing was asked is the news of the end, or a notice.
            if not selector.select(0):
                return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        with self._lock:
            self._unproven = ""
            try:
                yield
                if self._unproven:
                    raise psycopg.OperationalError(self._unproven)
            except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
                # What a client has sent, and PostgreSQL cannot keep: a NUL in a text, or a name too
                # long for an index.
                raise KafkaError(ErrorCode.INVALID_REQUEST, self._said(doing, error)) from error
            except psycopg.errors.ReadOnlySqlTransaction as error:
                self._give_up()
                raise CatalogUnavailable(f"{self._said(doing, error)}. {_PRIMARY}") from error
            except _ENDED as error:
                # The server may have ended a statement that took too long. What held it up is not
                # known, so the next call begins anew.
                self._give_up()
                raise CatalogUnavailable(self._said(doing, error)) from error
            except psycopg.errors.InsufficientPrivilege as error:
                said = self._said(doing, error)
                raise CatalogFailure(f"{said}. {_GRANTS}") from error
            except psycopg.Error as error:
                raise CatalogFailure(self._said(doing, error)) from error

    def _said(self, doing: str, error: psycopg.Error) -> str:
        # libpq's message has several lines for each address that it tried: make them sentences.
        said = ". ".join(line.strip().rstrip(".") for line in str(error).splitlines())
        return f"catalog {self.shown}: cannot {doing}: {said}"

    # --- tables

    def _migrate(self, new_cluster_id: str) -> None:
        connection = self._connected()
        done = self._version(connection)
        if done == len(MIGRATIONS):
            return
        if self._tables is Tables.LEFT:
            raise CatalogFailure(self._unusable(done))
        self.check_sessions()
        # Several nodes may start on an empty database at once.
        with self._begun("BEGIN"):
            connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})".encode())
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version int NOT NULL)")
            done = self._version(connection)
            if done == len(MIGRATIONS):
                return  # Another node was first, and may live already.
            # A newer schema may mean anything: a start that guessed would damage it.
            if done > len(MIGRATIONS):
                raise CatalogFailure(self._unusable(done))
            if done and self._tables is Tables.MADE_AT_REST:
                self._refuse_if_nodes_live(connection, done)
            for script in MIGRATIONS[done:]:
                connection.execute(script.encode())
            if done == 0:
                connection.execute("INSERT INTO schema_version VALUES (0)")
                # -1: the first start counts up to epoch 0.
                connection.execute(
                    "INSERT INTO cluster VALUES (1, %s, -1, 0, 0, %s, 0, '')",
                    (new_cluster_id, secrets.token_bytes(32)),
                )
            connection.execute("UPDATE schema_version SET version = %s", (len(MIGRATIONS),))

    def _refuse_if_nodes_live(self, connection: _BoundedConnection, done: int) -> None:
        """Raise CatalogFailure while nodes run that could not start again afterwards.

        All of them are of the older version: a node opens the tables before it has a lease.
        """
        # As `is_leased`, which older tables do not have.
        live = connection.execute(
            "SELECT node_id, owner, version FROM nodes WHERE incarnation >= 0"
            " AND lease_until > now() AND lease_until <= clock_timestamp() + interval '6 s'"
            " AND owner IS DISTINCT FROM %s ORDER BY node_id",
            (self._owner,),
        ).fetchall()
        if live:
            nodes = ", ".join(
                f"node {node_id} ({owner}, magnetar {version})" for node_id, owner, version in live
            )
            raise CatalogFailure(
                f"{self._older(done)}, and nodes of that version live: {nodes}. Stop them first: a"
                " node that was killed counts for 6 s more. Or bring the tables up to date by"
                " `magnetar cluster init`: then these nodes run on, and cannot start again before"
                " they are of this version."
            )

    def _older(self, done: int) -> str:
        return (
            f"{self.shown} was written by an older magnetar (schema {done}, this one has"
            f" {len(MIGRATIONS)})"
        )

    def _unusable(self, done: int) -> str:
        """Say why tables of this version are not used, and what to do."""
        if done == 0:
            return (
                f"{self.shown} has no cluster. Is it the right database? `magnetar cluster init` or"
                " the first node makes the tables."
            )
        if done < len(MIGRATIONS):
            return (
                f"{self._older(done)}. Use that version, or stop its nodes, since they cannot start"
                " again afterwards, and bring the tables up to date by `magnetar cluster init`."
            )
        return (
            f"{self.shown} was written by a newer magnetar (schema {done}, this one knows"
            f" {len(MIGRATIONS)}). Use that version, or name another database."
        )

    def _version(self, connection: _BoundedConnection) -> int:
        """Return how many steps are made; 0: there are no tables."""
        found = connection.execute(f"SELECT to_regclass('{SCHEMA}.schema_version')".encode())
        if found.fetchall() == [(None,)]:
            return 0
        row = connection.execute("SELECT version FROM schema_version").fetchone()
        return 0 if row is None else int(row[0])


def may_answer_later(url: str, away: CatalogUnavailable) -> bool:
    """Return whether a database is away, starting, slow, or has no connection left.

    False: it has refused the connection for another reason, or may be asked at once. To be asked
    right after the failure `away`.
    """
    cause = away.__cause__
    # A connection of psycopg that fails has no code, whatever the server has said.
    if isinstance(cause, NoAnswer) or (isinstance(cause, psycopg.Error) and cause.sqlstate):
        return True
    # Imported only where a start has failed.
    from logstore.remote.postgres_readers import is_away

    return asyncio.run(is_away(url))


def shown(url: str) -> str:
    """Return where the database is, without a password."""
    parts = conninfo_to_dict(url)
    user = f"{parts['user']}@" if "user" in parts else ""
    host, port = parts.get("host", ""), parts.get("port", 5432)
    return f"postgresql://{user}{host}:{port}/{parts.get('dbname', '')}"
