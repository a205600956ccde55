"""Connections to PostgreSQL that prove commits: each proof is a transaction that waits for the
synchronous standby.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import OutcomeUnknown
from logstore.remote.postgres_readers import CONNECT_S, TROUBLE, told
from logstore.remote.postgres_url import STANDBY_WAIT


class _Prover(NamedTuple):
    """A connection for proofs."""

    #: Of asyncpg.
    connection: Any
    #: The statement `PROVE`.
    ask: Any
    #: The server's warnings that a proof's wait was cancelled. Such a proof proves nothing.
    warnings: list[str]


class PostgresProvers:
    """The connections for proofs of one node."""

    def __init__(self, connect: Callable[[], Awaitable[Any]]) -> None:
        """`connect` makes a connection whose commits wait for the standby."""
        self._connect = connect
        self._idle: list[_Prover] = []
        #: Ends of connections that had no answer.
        self._ending: set[asyncio.Task[None]] = set()

    async def prove(self, node: tuple[int, int], number: int, limit_s: float) -> None:
        """As `CommitStore.prove`, for an incarnation of a node."""
        prover = None
        try:
            prover = self._idle.pop() if self._idle else await self._new()
            done = await prover.ask.fetchval(*node, number, timeout=limit_s)
            if prover.warnings:
                raise OutcomeUnknown(f"a proof of commit {number}: {prover.warnings[-1]}")
            if done is None:
                raise OutcomeUnknown(f"commit {number} is not there")
            self._idle.append(prover)
            prover = None
        except TROUBLE as error:
            if prover is not None:
                self._end(prover.connection)
                prover = None
            raise OutcomeUnknown(f"a proof of commit {number}: {told(error)}") from error
        finally:
            if prover is not None:
                prover.connection.terminate()

    def give_up(self) -> None:
        """End the idle ones: they may lead to a server that is not the database any more."""
        while self._idle:
            self._idle.pop().connection.terminate()

    def close(self) -> None:
        """End all at once."""
        self.give_up()
        for ending in self._ending:
            ending.cancel()

    async def _new(self) -> _Prover:
        connection = await self._connect()
        warnings: list[str] = []

        def hear(_: object, said: Any) -> None:
            if said.server_source_function == STANDBY_WAIT:
                warnings.append(str(said))

        connection.add_log_listener(hear)
        try:
            return _Prover(
                connection, await connection.prepare(sql.PROVE, timeout=CONNECT_S), warnings
            )
        except BaseException:  # whatever ends it, a cancellation too
            connection.terminate()
            raise

    def _end(self, connection: Any) -> None:
        """End a connection beside everything else, and what the server does for it.

        A process of the server that waits for a standby does not notice that its client has gone.
        Each would keep its place, until the server has none for anybody.
        """

        async def close() -> None:
            with suppress(Exception):  # Whatever is wrong with it, it is given up.
                await connection.close(timeout=CONNECT_S)

        ending = asyncio.get_running_loop().create_task(close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
