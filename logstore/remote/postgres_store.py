"""The shared store in PostgreSQL: commits over one connection, reads and deletions over others.

Without a synchronous standby a commit waits for the server's disk, and is proven when it returns.
With one, that wait would lock the node's row for a round trip to the standby, and hold up the next
commit. So a commit does not wait for the standby. Transactions on other connections wait, and so
prove the commits.

Only a node of a cluster imports this module, since asyncpg is an optional package. The CPU time of
a commit in asyncpg and in psycopg: docs/decisions/0060-commit-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from logstore.remote import postgres_statements as sql
from logstore.remote.commit_store import (
    AttachmentChange,
    Basis,
    Changes,
    Chunk,
    Commit,
    Fenced,
    Forgotten,
    LogKey,
    Move,
    NoRoom,
    OutcomeUnknown,
    Span,
    StoredLog,
    StoredSegment,
    StoreUnavailable,
    Swap,
    Wanted,
    all_are_there,
)
from logstore.remote.postgres_endings import PostgresEndings
from logstore.remote.postgres_provers import PostgresProvers
from logstore.remote.postgres_readers import (
    BY_KEY,
    CONNECT_S,
    TROUBLE,
    PostgresReaders,
    cancelled_waits,
    connect,
    reason_of,
    set_statements,
    snapshot,
)
from logstore.remote.postgres_url import KEPT_ALIVE, Hosts
from logstore.remote.references import REFERENCE, REFERENCE_BYTES_MAX

#: A commit without an answer for so long counts as lost. That is less than the lease, so that there
#: is time to ask. A large commit gets more: it is sent again, and must be able to end.
_COMMIT_S = 4.0
_BYTES_A_SECOND = 4 << 20
#: A load fetches about so many bytes at once, each time within the time limit of a read.
_LOADED_BYTES = 4 << 20
#: It never fetches more rows at once: large ones of a MiB may come behind many small ones.
_LOADED_ROWS = 128
#: How many references are fetched at once: a large log has many.
_REFERENCES_AT_ONCE = 1_000
#: The time limit of a statement that goes through a whole table.
_WHOLE_TABLE_S = 600.0
#: The server stores a value that is larger than this in parts of this size.
_PART_BYTES = 1_996
#: Settings of the connections for commits and proofs, whatever the database or the role has. A
#: commit that has returned is on the disk, and the server sends warnings about its wait. A node
#: that stands still in the middle of a transaction locks its row for five seconds at most, so that
#: it can be taken over.
_COMMITTING = {
    "synchronous_commit": "on",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "5000",
}
#: How many rows one statement deletes, at first and at most. A statement that takes less than this
#: many seconds is followed by a larger one.
_DELETED_ROWS, _DELETED_ROWS_MAX, _DELETED_S = 64, 8_192, 0.2


class PostgresStore:
    """A `CommitStore` in PostgreSQL; its methods are documented there."""

    def __init__(self, url: str, schema: str = "magnetar") -> None:
        """`url` names the database as for libpq: a URL, or key=value pairs. It must not lead to a
        pooler that pools transactions: statements are prepared."""
        self._hosts = Hosts(url)
        self._settings = {
            "search_path": schema,
            "application_name": "magnetar",
            **BY_KEY,
            **KEPT_ALIVE,
        }
        self._node = (0, 0)
        self._connection: asyncpg.Connection[Any] | None = None
        self._commit_chunks: Any = None
        #: By the number of chunks; each is prepared at its first use.
        self._commit_few_chunks: dict[int, Any] = {}
        #: Prepared at its first use, which never comes without a standby.
        self._commit_chunks_on_basis: Any = None
        self._commit_all: Any = None
        self._endings = PostgresEndings()
        self._readers = PostgresReaders(self._hosts, self._settings, self._endings)
        self._lend = self._readers.lend
        #: Whether commits have to be proven over other connections.
        self._has_standby = False
        #: Those of `_connection`. A standby may have come since it was made.
        self._cancelled_waits: list[str] = []
        self._provers = PostgresProvers(self._connect_to_commit, self._endings)
        #: How many removed parts the last vacuum left, since an older transaction may read them.
        self._kept_parts = 0
        self.proven = 0

    def begin_as(self, node_id: int, incarnation: int) -> None:
        self._node = (node_id, incarnation)
        self.proven = 0

    async def connect(self) -> None:
        self._give_up()
        connection = None
        try:
            connection = await self._connect_to_commit()
            self._has_standby = await connection.fetchval(sql.HAS_STANDBY, timeout=CONNECT_S)
            if self._has_standby:
                await connection.execute(sql.DO_NOT_WAIT, timeout=CONNECT_S)
            self._commit_chunks = await connection.prepare(sql.COMMIT_CHUNKS, timeout=CONNECT_S)
            self._commit_all = await connection.prepare(sql.COMMIT_ALL, timeout=CONNECT_S)
            self._commit_few_chunks = {}
            self._commit_chunks_on_basis = None
            self._cancelled_waits = cancelled_waits(connection)
            await self._readers.end_lost(connection)
            self._connection, connection = connection, None
        except TROUBLE as error:
            raise StoreUnavailable(reason_of(error)) from error
        finally:
            if connection is not None:
                self._endings.end(connection)

    async def _connect_to_commit(self) -> asyncpg.Connection[Any]:
        connection = await connect(self._hosts)
        try:
            statements = set_statements(self._settings | _COMMITTING)
            await connection.execute(statements, timeout=CONNECT_S)
        except BaseException:  # whatever ends it, a cancellation too
            connection.terminate()
            raise
        return connection

    async def commit(self, commit: Commit) -> None:
        connection = self._connection
        if connection is None:
            raise OutcomeUnknown("there is no connection")
        number, previous, changes, rests_on = commit
        fence = (*self._node, number, previous)
        limit_s = _COMMIT_S + _size_bytes(changes) / _BYTES_A_SECOND
        try:
            if changes.swaps or changes.moves:
                async with asyncio.timeout(limit_s):
                    done = await self._commit_swaps(connection, fence, changes, rests_on)
            elif changes.segments or changes.starts or changes.attachments:
                done = await self._commit_all.fetchval(
                    *fence, *_all_columns(changes, rests_on), timeout=limit_s
                )
            elif rests_on:
                done = await self._commit_on_basis(fence, changes, rests_on, limit_s)
            else:
                done = await self._commit_plain(connection, fence, changes.chunks, limit_s)
        except TROUBLE as error:
            self._end(connection)
            unknown = NoRoom if isinstance(error, asyncpg.DiskFullError) else OutcomeUnknown
            raise unknown(f"commit {number}: {reason_of(error)}") from error
        if done is None:
            raise Fenced(f"commit {number} of {self._own}")
        if self._cancelled_waits:
            raise OutcomeUnknown(f"commit {number}: {self._cancelled_waits[-1]}")
        if not self._has_standby:
            self.proven = max(self.proven, number)

    @property
    def _own(self) -> str:
        return f"incarnation {self._node[1]} of node {self._node[0]}"

    async def _commit_plain(
        self,
        connection: asyncpg.Connection[Any],
        fence: tuple[int, ...],
        chunks: Sequence[Chunk],
        limit_s: float,
    ) -> Any:
        if not 0 < (count := len(chunks)) <= sql.FEW_CHUNKS:
            return await self._commit_chunks.fetchval(
                *fence, *_chunk_columns(chunks), timeout=limit_s
            )
        statement = self._commit_few_chunks.get(count)
        if statement is None:
            statement = await connection.prepare(sql.commit_few_chunks(count), timeout=CONNECT_S)
            self._commit_few_chunks[count] = statement
        rows: list[Any] = []
        for key, base_offset, end_offset, data in chunks:
            rows += (*key, base_offset, end_offset, data)
        return await statement.fetchval(*fence, *rows, timeout=limit_s)

    async def _commit_on_basis(
        self, fence: tuple[int, ...], changes: Changes, rests_on: Sequence[Basis], limit_s: float
    ) -> Any:
        if self._commit_chunks_on_basis is None:
            assert self._connection is not None
            self._commit_chunks_on_basis = await self._connection.prepare(
                sql.COMMIT_CHUNKS_ON_BASIS, timeout=CONNECT_S
            )
        columns = (*_chunk_columns(changes.chunks), *_basis_columns(rests_on))
        return await self._commit_chunks_on_basis.fetchval(*fence, *columns, timeout=limit_s)

    async def prove(self, number: int) -> None:
        await self._provers.prove(self._node, number, _COMMIT_S)
        self.proven = max(self.proven, number)

    async def _commit_swaps(
        self,
        connection: asyncpg.Connection[Any],
        fence: tuple[int, ...],
        changes: Changes,
        rests_on: Sequence[Basis],
    ) -> object:
        """Commit in several statements: one statement cannot remove a row and write it again.

        Returns None where another has fenced this node off, and nothing has happened.
        """
        node_id, incarnation, _, previous = fence
        transaction = connection.transaction()
        await transaction.start()
        done = await connection.fetchval(sql.LOCK_NODE, node_id, incarnation, previous)
        if done is not None:
            for swap in changes.swaps:
                await self._swap(connection, swap)
            for move in changes.moves:
                await self._replace(connection, move)
            done = await self._commit_all.fetchval(*fence, *_all_columns(changes, rests_on))
        # What goes wrong before ends the connection. A rollback, when the time is up, would wait
        # without end for a server that has vanished.
        await (transaction.rollback() if done is None else transaction.commit())
        return done

    async def _swap(self, connection: asyncpg.Connection[Any], swap: Swap) -> None:
        segment = swap.segment
        bounds = (segment.key, segment.base_offset, segment.end_offset)
        await self._replace(connection, Move(*bounds, swap.chunks))
        await connection.execute(sql.REMOVE_SEGMENTS, *segment.key, *bounds[1:])
        row = (*segment.key, *segment[1:])
        await connection.execute(sql.ADD_SEGMENT, *row)

    async def _replace(self, connection: asyncpg.Connection[Any], move: Move) -> None:
        bounds = (*move.key, move.base_offset, move.end_offset)
        await connection.execute(sql.REMOVE_CHUNKS, *bounds)
        rows = [(*chunk.key, *chunk[1:]) for chunk in move.chunks]
        await connection.executemany(sql.ADD_CHUNK, rows)

    async def renew(self) -> None:
        if not await self._ask(sql.RENEW, *self._node):
            raise Fenced(self._own)

    async def has(self, bases: Sequence[Basis]) -> bool:
        # Over the connection for commits, which leads to the server that they go to.
        rows = await self._ask(sql.LAST_COMMITS, [basis.node_id for basis in bases])
        found = {node_id: (incarnation, number) for node_id, incarnation, number in rows}
        return all_are_there(bases, found)

    async def last_commit(self) -> int:
        rows = await self._ask(sql.LAST_COMMITS, [self._node[0]])
        if not rows or rows[0][1] < self._node[1]:
            raise Forgotten(self._own)
        if rows[0][1] > self._node[1]:
            raise Fenced(self._own)
        return int(rows[0][2])

    async def _ask(self, statement: str, *arguments: Any) -> Any:
        """Return rows, read over the connection for commits. Raises StoreUnavailable."""
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("there is no connection")
        try:
            return await connection.fetch(statement, *arguments, timeout=CONNECT_S)
        except TROUBLE as error:
            self._end(connection)
            raise StoreUnavailable(reason_of(error)) from error

    async def load(self, wanted: Sequence[Wanted]) -> list[StoredLog]:
        keys = _key_columns([one.key for one in wanted])
        async with self._lend() as reader, snapshot(reader):
            rows = {row[0]: row for row in await reader.fetch(sql.LOAD_LOGS, *keys)}
            logs = [rows[number] for number in range(1, len(wanted) + 1)]
            from_offsets = [
                (row[3] or 0) if one.from_offset is None else one.from_offset
                for one, row in zip(wanted, logs, strict=True)
            ]
            chunks = _grouped(await _in_parts(reader, sql.LOAD_CHUNKS, *keys, from_offsets))
            segments = _grouped(await reader.fetch(sql.LOAD_SEGMENTS, *keys))
            attachments = _grouped(await reader.fetch(sql.LOAD_ATTACHMENTS, *keys))
        return [
            StoredLog(
                row[1] or 0,
                [StoredSegment(one.key, *columns) for columns in segments.get(number, ())],
                dict(attachments.get(number, ())),
                [Chunk(one.key, *columns) for columns in chunks.get(number, ())],
                row[2],
            )
            for number, (one, row) in enumerate(zip(wanted, logs, strict=True), 1)
        ]

    async def read(
        self, key: LogKey, offset: int, max_bytes: int, end_offset: int
    ) -> Sequence[Chunk]:
        async with self._lend() as reader:
            rows = await reader.fetch(sql.READ, *key, offset, max_bytes, end_offset)
        return [Chunk(key, *row) for row in rows]

    async def delete(self, keys: Sequence[LogKey]) -> None:
        async with self._lend() as reader:
            for key in keys:
                await _delete_chunks(reader, key)
            for statement in sql.DELETE:
                await reader.execute(statement, *_key_columns(keys))

    async def reclaim(self, bytes_min: int) -> None:
        async with self._lend() as reader:
            parts = await reader.fetchval(sql.REMOVED_PARTS)
            self._kept_parts = min(self._kept_parts, parts)
            removed = parts - self._kept_parts
            # A vacuum goes through all that is kept once more. While a dump goes on, each further
            # one has half as much again to free.
            if removed * _PART_BYTES >= bytes_min and 2 * removed >= self._kept_parts:
                await reader.execute(sql.RECLAIM, timeout=_WHOLE_TABLE_S)
                self._kept_parts = await reader.fetchval(sql.REMOVED_PARTS)

    async def incarnations(self) -> Collection[int]:
        async with self._lend() as reader:
            rows = await reader.fetch(sql.INCARNATIONS)
        return [incarnation for (incarnation,) in rows]

    async def remains(self, topic_ids: Collection[UUID]) -> Sequence[LogKey]:
        async with self._lend() as reader:
            rows = await reader.fetch(sql.REMAINS, [*topic_ids])
        return [LogKey(*row) for row in rows]

    async def references(self, spans: Collection[Span]) -> AsyncIterator[Sequence[bytes]]:
        async with self._lend() as reader, snapshot(reader):
            await reader.execute(sql.WHOLE_TABLES)
            columns = (
                *_key_columns([span.key for span in spans]),
                [span.base_offset for span in spans],
                [span.end_offset for span in spans],
            )
            arguments = (*columns, REFERENCE, REFERENCE_BYTES_MAX)
            cursor = await reader.cursor(sql.REFERENCES, *arguments, timeout=_WHOLE_TABLE_S)
            while rows := await cursor.fetch(_REFERENCES_AT_ONCE, timeout=_WHOLE_TABLE_S):
                yield [data for (data,) in rows]

    async def fill(self, changes: Changes) -> None:
        """Write the logs of an import, without a fence: no node lives. Raises StoreUnavailable."""
        rows = {
            "chunks": [(*one.key, *one[1:]) for one in changes.chunks],
            "segments": [(*one.key, *one[1:]) for one in changes.segments],
            "logs": [(*one.key, one.start_offset) for one in changes.starts],
            "attachments": [(*one.key, one.name, one.data) for one in changes.attachments],
        }
        async with self._lend() as writer, writer.transaction():
            for table, records in rows.items():
                if records:
                    await writer.copy_records_to_table(table, records=records)

    async def clear(self) -> None:
        """Delete everything of every log. Raises StoreUnavailable."""
        async with self._lend() as writer:
            await writer.execute(sql.CLEAR)

    async def close(self) -> None:
        self._give_up()
        await self._endings.close()
        self._readers.end()

    def _end(self, connection: asyncpg.Connection[Any]) -> None:
        """Let go of a connection for commits that has failed."""
        self._endings.end(connection)
        if connection is self._connection:
            self._connection = None
            self._give_up()

    def _give_up(self) -> None:
        """End the connections for commits and proofs at once; the server may still be at work."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        self._provers.give_up()


async def _in_parts(reader: Any, statement: str, *arguments: Any) -> list[Any]:
    """Return all rows; the last column of each is its data.

    The time limit is for each part. One limit for a large load would end every attempt.
    """
    cursor = await reader.cursor(statement, *arguments)
    count, rows = 1, list[Any]()
    while True:
        found = await cursor.fetch(count)
        rows += found
        if len(found) < count:
            return rows
        size_bytes = sum(len(row[-1]) for row in found)
        fitting = max(_LOADED_BYTES * len(found) // max(size_bytes, 1), 1)
        count = min(fitting, 8 * count, _LOADED_ROWS)


async def _delete_chunks(reader: Any, key: LogKey) -> None:
    """Delete a log's chunks in parts: one statement for a large log would never end in time."""
    now_s = asyncio.get_running_loop().time
    first, count = 0, _DELETED_ROWS
    while (last := await reader.fetchval(sql.SOME_CHUNKS, *key, first, count)) is not None:
        began_s = now_s()
        await reader.execute(sql.DELETE_CHUNKS, *key, first, last)
        first = last + 1
        if now_s() - began_s < _DELETED_S:
            count = min(2 * count, _DELETED_ROWS_MAX)
        else:
            count = max(count // 2, _DELETED_ROWS)


def _size_bytes(changes: Changes) -> int:
    chunks = [*changes.chunks, *(chunk for swap in changes.swaps for chunk in swap.chunks)]
    attached = sum(len(one.data) for one in changes.attachments if one.data is not None)
    return attached + sum(len(chunk.data) for chunk in chunks)


def _key_columns(keys: Sequence[LogKey]) -> tuple[list[Any], list[Any]]:
    return [key.topic_id for key in keys], [key.partition for key in keys]


def _chunk_columns(chunks: Sequence[Chunk]) -> tuple[list[Any], ...]:
    return (
        *_key_columns([chunk.key for chunk in chunks]),
        [chunk.base_offset for chunk in chunks],
        [chunk.end_offset for chunk in chunks],
        [chunk.data for chunk in chunks],
    )


def _basis_columns(bases: Sequence[Basis]) -> tuple[list[Any], ...]:
    return (
        [basis.node_id for basis in bases],
        [basis.incarnation for basis in bases],
        [basis.number for basis in bases],
    )


def _all_columns(changes: Changes, rests_on: Sequence[Basis]) -> tuple[list[Any], ...]:
    segments, starts = changes.segments, changes.starts
    replaced = [one for one in changes.attachments if one.data is not None and not one.is_append]
    appended = [one for one in changes.attachments if one.data is not None and one.is_append]
    deleted = [one for one in changes.attachments if one.data is None]
    return (
        *_chunk_columns(changes.chunks),
        *_basis_columns(rests_on),
        *_key_columns([one.key for one in segments]),
        [one.base_offset for one in segments],
        [one.end_offset for one in segments],
        [one.size_bytes for one in segments],
        [one.max_timestamp_ms for one in segments],
        *_key_columns([one.key for one in starts]),
        [one.start_offset for one in starts],
        [one.kept_from for one in starts],
        [one.stored_from for one in starts],
        *_attachment_columns(replaced),
        *_attachment_columns(appended),
        *_attachment_columns(deleted)[:3],
    )


def _attachment_columns(changes: Sequence[AttachmentChange]) -> tuple[list[Any], ...]:
    return (
        *_key_columns([one.key for one in changes]),
        [one.name for one in changes],
        [one.data for one in changes],
    )


def _grouped(rows: Sequence[Any]) -> dict[int, list[tuple[Any, ...]]]:
    """Return rows by their first column, without it."""
    grouped: dict[int, list[tuple[Any, ...]]] = {}
    for number, *columns in rows:
        grouped.setdefault(number, []).append(tuple(columns))
    return grouped
