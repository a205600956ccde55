"""Connections to PostgreSQL that prove commits: each proof is a transaction that waits for the
synchronous standby.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import OutcomeUnknown
from logstore.remote.postgres_endings import PostgresEndings
from logstore.remote.postgres_readers import CONNECT_S, TROUBLE, cancelled_waits, reason_of


class _Prover(NamedTuple):
    """A connection for proofs."""

    #: A connection of asyncpg.
    connection: Any
    #: The statement `PROVE`.
    ask: Any
    #: The server's warnings that a proof's wait was cancelled. Such a proof proves nothing.
    warnings: list[str]


class PostgresProvers:
    """The connections for proofs of one node."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], endings: PostgresEndings) -> None:
        """`connect` makes a connection whose commits wait for the standby."""
        self._connect = connect
        self._endings = endings
        self._idle: list[_Prover] = []

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
            raise OutcomeUnknown(f"a proof of commit {number}: {reason_of(error)}") from error
        finally:
            if prover is not None:
                self._endings.end(prover.connection)

    def give_up(self) -> None:
        """End the idle connections: they may lead to a server that is no longer the primary."""
        while self._idle:
            self._idle.pop().connection.terminate()

    async def _new(self) -> _Prover:
        connection = await self._connect()
        try:
            ask = await connection.prepare(sql.PROVE, timeout=CONNECT_S)
            return _Prover(connection, ask, cancelled_waits(connection))
        except BaseException:  # whatever ends it, a cancellation too
            self._endings.end(connection)
            raise
