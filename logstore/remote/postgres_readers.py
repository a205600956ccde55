"""Connections to PostgreSQL: the settings of each one, and a pool of them beside that for commits.

Reads, and deletions, borrow from the pool. They go to the server that commits go to. A new
connection for commits may lead to another server. Then the reads are ended that this server is not
working on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.postgres_endings import PostgresEndings
from logstore.remote.postgres_url import STANDBY_WAIT, UNLIMITED, Hosts, address_for_asyncpg

#: What a lost connection, a refusal of the server, and a timeout raise. InternalClientError comes
#: where a connection is lost in the middle of asyncpg's own work.
TROUBLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
#: Those of them that are no refusal.
_AWAY = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
#: How long a connection to one host may take, and each of its first statements.
CONNECT_S = 2.0
_READ_S = 30.0
#: How many connections can be lent at the same time.
_READERS = 4
#: Every statement names its logs by their keys. Without statistics of a table that has grown, or
#: with a few large logs in it, the planner would rather go through all rows of all logs. Without
#: that choice one plan is enough: planning the longest statement takes twice its execution. And no
#: plan is worth compiling, whatever cost the planner sees in it.
BY_KEY = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}


async def connect(hosts: Hosts, **options: Any) -> asyncpg.Connection[Any]:
    """Connect to the first host that serves. Raises TROUBLE: that of the last host."""
    trouble: BaseException | None = None
    for address in hosts:
        try:
            url = address_for_asyncpg(address)
            connection = await asyncpg.connect(url, timeout=CONNECT_S, **options)
        except TROUBLE as error:
            trouble = error
        else:
            hosts.note_serving(address)
            return connection
    assert trouble is not None
    raise trouble


async def is_away(url: str) -> bool:
    """Return whether a server cannot be reached, is starting, or has no two connections left."""
    with ExitStack() as connections:
        try:
            for _ in range(2):  # A node needs more than one.
                connection = await connect(Hosts(url))
                connections.callback(connection.terminate)
        except TROUBLE as trouble:
            return isinstance(trouble, _AWAY)
    return False


def set_statements(settings: Mapping[str, str]) -> str:
    """Return the SQL that gives an open connection its settings.

    A pooler of sessions (PgBouncer) refuses connections that name such settings when they are made.
    """
    return "; ".join([*(f"SET {name} = '{value}'" for name, value in settings.items()), UNLIMITED])


def reason_of(error: Exception) -> str:
    """Return an error's message, or its type if it has none."""
    return str(error) or type(error).__name__


def cancelled_waits(connection: Any) -> list[str]:
    """Return where the server's warnings appear that a wait for a standby was cancelled.

    Statements succeed all the same, and what they wrote may be taken back. A warning is there
    before the answer of its statement.
    """
    warnings: list[str] = []

    def hear(_: object, said: Any) -> None:
        if said.server_source_function == STANDBY_WAIT:
            warnings.append(str(said))

    connection.add_log_listener(hear)
    return warnings


@asynccontextmanager
async def snapshot(reader: Any) -> AsyncIterator[None]:
    """Let all reads of a lent connection see one moment.

    After an error nothing rolls back: that would wait for a server that has vanished. `lend` ends
    the connection, and the transaction with it.
    """
    transaction = reader.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    yield
    await transaction.commit()


class _Reader(NamedTuple):
    """A connection for reads."""

    connection: asyncpg.Connection[Any]
    #: The server's process for it, and when that began: no two servers have the same pair.
    served_by: tuple[int, datetime]


class PostgresReaders:
    """The connections that one node lends to reads and deletions."""

    def __init__(self, hosts: Hosts, settings: Mapping[str, str], endings: PostgresEndings) -> None:
        self._hosts = hosts
        self._set_statements = set_statements(settings)
        self._endings = endings
        self._slots = asyncio.Semaphore(_READERS)
        self._idle: list[_Reader] = []
        self._lent: set[_Reader] = set()
        #: How often commits got a new connection, perhaps to another server.
        self._changes = 0

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        """Lend a connection; an error in the block ends it. Raises StoreUnavailable."""
        async with self._slots:
            reader = None
            try:
                reader = self._idle_one() or await self._new()
                self._lent.add(reader)
                yield reader.connection
                self._lent.remove(reader)
                self._idle.append(reader)
                reader = None
            except TROUBLE as error:
                raise StoreUnavailable(reason_of(error)) from error
            finally:
                if reader is not None:
                    self._lent.discard(reader)
                    # It may have been a deletion, which waits for a standby.
                    self._endings.end(reader.connection)

    async def end_lost(self, commits: asyncpg.Connection[Any]) -> None:
        """End the reads that the server of `commits` is not working on; later reads connect anew.

        Such a read may wait for a server that has vanished, for half a minute, or read old data
        from one that is no longer the primary. A read that is only slow goes on.
        """
        self._changes += 1
        while self._idle:
            self._idle.pop().connection.terminate()
        if lent := [*self._lent]:
            pids = [reader.served_by[0] for reader in lent]
            at_work = await commits.fetch(sql.AT_WORK, pids, timeout=CONNECT_S)
            served = {(pid, began) for pid, began in at_work}
            for reader in lent:
                if reader.served_by not in served:
                    reader.connection.terminate()

    def end(self) -> None:
        """End all reads at once."""
        for reader in (*self._idle, *self._lent):
            reader.connection.terminate()
        self._idle.clear()

    def _idle_one(self) -> _Reader | None:
        """Return a connection that is open and not lent; None: there is none."""
        while self._idle:
            reader = self._idle.pop()
            if not reader.connection.is_closed():
                return reader
        return None

    async def _new(self) -> _Reader:
        changes = self._changes
        connection = await connect(self._hosts, command_timeout=_READ_S)
        try:
            await connection.execute(self._set_statements, timeout=CONNECT_S)
            pid, began = await connection.fetchrow(sql.SERVED_BY, timeout=CONNECT_S)
            if changes != self._changes:
                raise StoreUnavailable("commits may go to another server by now")
        except BaseException:  # whatever ends it, a cancellation too
            connection.terminate()
            raise
        return _Reader(connection, (pid, began))
