"""The SQL of `PostgresStore`. Tables: `postgres_schema`, and the catalog's `nodes`.

A commit is one statement: the update of the node's row is the fence, and everything else is joined
with what the update returns. `now()` is when the statement began on the server. The node sent it
before that, and counts its lease from there: so its own copy never ends after the one in the row.
"""

from __future__ import annotations

from logstore.remote.commit_store import LEASE_MS

_LEASE = f"lease_until = now() + interval '{LEASE_MS} ms'"
_FENCED = f"""
WITH fence AS (
    UPDATE nodes SET commit_seq = $3::bigint, {_LEASE}
    WHERE node_id = $1 AND incarnation = $2 AND commit_seq = $4::bigint{{basis}}
    RETURNING 1
)"""
_FENCE = (
    _FENCED
    + """, chunks_written AS (
    INSERT INTO chunks
    SELECT u.* FROM unnest($5::uuid[], $6::int[], $7::bigint[], $8::bigint[], $9::bytea[]) u, fence
)"""
)
#: Every commit that this one rests on is there: node, incarnation and number of each.
_BASIS = """ AND NOT EXISTS (
        SELECT FROM unnest($10::int[], $11::bigint[], $12::bigint[]) basis(n, i, c)
        WHERE NOT EXISTS (
            SELECT FROM nodes other WHERE other.node_id = n AND other.incarnation = i
            AND other.commit_seq >= c
        )
    )"""

#: A commit of chunks alone, whatever their number.
COMMIT_CHUNKS = _FENCE.format(basis="") + " SELECT 1 FROM fence"
#: Up to so many chunks there is a statement for each number: it costs less than arrays do
#: (docs/decisions/0081-cost-of-a-commit.md).
FEW_CHUNKS = 8
_CHUNK_TYPES = ("uuid", "int", "bigint", "bigint", "bytea")


def commit_few_chunks(count: int) -> str:
    """Return COMMIT_CHUNKS for so many chunks, each with parameters of its own.

    That is what almost all commits are.
    """
    numbers = iter(range(5, 5 + count * len(_CHUNK_TYPES)))
    rows = (", ".join(f"${next(numbers)}::{kind}" for kind in _CHUNK_TYPES) for _ in range(count))
    values = ", ".join(f"({row})" for row in rows)
    return (
        _FENCED.format(basis="")
        + f" INSERT INTO chunks SELECT v.* FROM (VALUES {values}) v, fence RETURNING 1"
    )


#: COMMIT_CHUNKS where it rests on commits of other nodes.
COMMIT_CHUNKS_ON_BASIS = _FENCE.format(basis=_BASIS) + " SELECT 1 FROM fence"

COMMIT_ALL = (
    _FENCE.format(basis=_BASIS)
    + """, segments_written AS (
    INSERT INTO segments
    SELECT u.* FROM
        unnest($13::uuid[], $14::int[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[])
        u, fence
), starts(topic_id, partition, start_offset, kept_from, stored_from) AS (
    SELECT u.* FROM
        unnest($19::uuid[], $20::int[], $21::bigint[], $22::bigint[], $23::bigint[]) u, fence
), starts_written AS (
    INSERT INTO logs AS stored SELECT topic_id, partition, start_offset FROM starts
    ON CONFLICT (topic_id, partition)
    DO UPDATE SET start_offset = greatest(stored.start_offset, excluded.start_offset)
), chunks_removed AS (
    DELETE FROM chunks USING starts s
    WHERE chunks.topic_id = s.topic_id AND chunks.partition = s.partition
    AND base_offset >= s.stored_from
    AND base_offset < s.kept_from AND end_offset <= s.kept_from
), segments_removed AS (
    DELETE FROM segments USING starts s
    WHERE segments.topic_id = s.topic_id AND segments.partition = s.partition
    AND base_offset >= s.stored_from
    AND base_offset < s.kept_from AND end_offset <= s.kept_from
), replaced AS (
    INSERT INTO attachments
    SELECT u.* FROM unnest($24::uuid[], $25::int[], $26::text[], $27::bytea[]) u, fence
    ON CONFLICT (topic_id, partition, name) DO UPDATE SET data = excluded.data
), appended AS (
    INSERT INTO attachments AS stored
    SELECT u.* FROM unnest($28::uuid[], $29::int[], $30::text[], $31::bytea[]) u, fence
    ON CONFLICT (topic_id, partition, name) DO UPDATE SET data = stored.data || excluded.data
), deleted AS (
    DELETE FROM attachments USING
        (SELECT u.* FROM unnest($32::uuid[], $33::int[], $34::text[]) u, fence) d(t, p, n)
    WHERE topic_id = d.t AND partition = d.p AND name = d.n
)
SELECT 1 FROM fence"""
)

RENEW = f"UPDATE nodes SET {_LEASE} WHERE node_id = $1 AND incarnation = $2 RETURNING 1"

#: The first statement of a commit with swaps or moves: it waits for other transactions that hold
#: the node's row, and no later statement does.
LOCK_NODE = """
SELECT 1 FROM nodes WHERE node_id = $1 AND incarnation = $2 AND commit_seq = $3 FOR UPDATE"""
REMOVE_CHUNKS = """
DELETE FROM chunks WHERE topic_id = $1 AND partition = $2
AND base_offset >= $3 AND base_offset < $4"""
REMOVE_SEGMENTS = """
DELETE FROM segments WHERE topic_id = $1 AND partition = $2
AND base_offset >= $3 AND base_offset < $4"""
ADD_SEGMENT = "INSERT INTO segments VALUES ($1, $2, $3, $4, $5, $6)"
ADD_CHUNK = "INSERT INTO chunks VALUES ($1, $2, $3, $4, $5)"

#: A transaction of its own, which sees the commit and waits for the standby. When it returns, what
#: it has seen is on the standby too. It writes to the server's log, because a transaction that has
#: written nothing does not wait.
PROVE = """
SELECT pg_logical_emit_message(true, 'magnetar', ''::text)::text FROM nodes
WHERE node_id = $1 AND incarnation = $2 AND commit_seq >= $3"""
HAS_STANDBY = "SELECT coalesce(current_setting('synchronous_standby_names', true), '') <> ''"
#: What the next commits of a connection wait for: nothing, since proofs follow.
DO_NOT_WAIT = "SET synchronous_commit = off"

#: The server's process of this connection, and when it began: a process id may be given out again.
SERVED_BY = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
#: Those of these processes that this server has, and that have something to do.
AT_WORK = """
SELECT pid, backend_start FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND state <> 'idle'"""

LAST_COMMITS = "SELECT node_id, incarnation, commit_seq FROM nodes WHERE node_id = ANY($1::int[])"

_WANTED = "unnest($1::uuid[], $2::int[]) WITH ORDINALITY w(t, p, number)"
LOAD_LOGS = f"""
SELECT number, start_offset,
    (SELECT min(base_offset) FROM chunks WHERE topic_id = w.t AND partition = w.p),
    (SELECT max(end_offset) FROM segments WHERE topic_id = w.t AND partition = w.p)
FROM {_WANTED} LEFT JOIN logs ON topic_id = w.t AND partition = w.p"""
LOAD_SEGMENTS = f"""
SELECT number, base_offset, end_offset, size_bytes, max_timestamp
FROM {_WANTED} JOIN segments ON topic_id = w.t AND partition = w.p
ORDER BY number, base_offset"""
LOAD_ATTACHMENTS = f"""
SELECT number, name, data
FROM {_WANTED} JOIN attachments ON topic_id = w.t AND partition = w.p"""
LOAD_CHUNKS = """
SELECT number, c.base_offset, c.end_offset, c.data
FROM unnest($1::uuid[], $2::int[], $3::bigint[]) WITH ORDINALITY w(t, p, from_offset, number),
LATERAL (
    SELECT base_offset, end_offset, data FROM chunks
    WHERE topic_id = w.t AND partition = w.p AND base_offset >= coalesce(
        (
            SELECT max(base_offset) FROM chunks
            WHERE topic_id = w.t AND partition = w.p AND base_offset < w.from_offset
        ),
        0
    )
) c
ORDER BY number, c.base_offset"""

#: `octet_length` reads no bytes that are stored apart from their row.
READ = """
SELECT base_offset, end_offset, data FROM (
    SELECT base_offset, end_offset, data,
        sum(octet_length(data)) OVER (ORDER BY base_offset) AS size_bytes,
        row_number() OVER (ORDER BY base_offset) AS number
    FROM chunks
    WHERE topic_id = $1 AND partition = $2 AND base_offset < $5 AND end_offset > $3
    AND base_offset >= coalesce(
        (
            SELECT max(base_offset) FROM chunks
            WHERE topic_id = $1 AND partition = $2 AND base_offset <= $3
        ),
        0
    )
    ORDER BY base_offset LIMIT 1000
) found
WHERE number = 1 OR size_bytes <= $4
ORDER BY base_offset"""

#: How many parts of values were removed since the last vacuum, by the server's own count, which is
#: some seconds old.
REMOVED_PARTS = """
SELECT pg_stat_get_dead_tuples(reltoastrelid) FROM pg_class WHERE oid = 'chunks'::regclass"""

#: Skipped while another node does it. The room is used again, and not given back to the disk, which
#: would keep commits out meanwhile.
RECLAIM = "VACUUM (SKIP_LOCKED, TRUNCATE FALSE) chunks"

INCARNATIONS = "SELECT incarnation FROM nodes"

#: What a transaction says first that reads most rows of most logs.
WHOLE_TABLES = "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on"
#: Reads all rows of these spans, but no bytes that are stored apart from their row: those of a
#: reference ($5: its first byte, $6: its greatest length) never are.
REFERENCES = """
SELECT data FROM chunks
JOIN unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[]) w(t, p, base, stop)
ON topic_id = w.t AND partition = w.p AND base_offset >= w.base AND base_offset < w.stop
WHERE CASE WHEN octet_length(data) <= $6 THEN get_byte(data, 0) = $5 END"""

#: The base offset of the last of some chunks of a log, from an offset on; NULL: there is none.
#: Chunks are deleted in such parts: all of a large log would take longer than any call may.
SOME_CHUNKS = """
SELECT max(base_offset) FROM (
    SELECT base_offset FROM chunks WHERE topic_id = $1 AND partition = $2 AND base_offset >= $3
    ORDER BY base_offset LIMIT $4
) oldest"""
#: The bound below keeps each call from going through what those before it have deleted, which stays
#: in the index for as long as any transaction may see it.
DELETE_CHUNKS = """
DELETE FROM chunks WHERE topic_id = $1 AND partition = $2 AND base_offset BETWEEN $3 AND $4"""
_SMALL_TABLES = ("segments", "attachments", "logs")
DELETE = tuple(
    f"DELETE FROM {table} USING {_WANTED} WHERE topic_id = w.t AND partition = w.p"
    for table in _SMALL_TABLES
)
_TABLES = ("chunks", *_SMALL_TABLES)
CLEAR = "TRUNCATE " + ", ".join(_TABLES)
REMAINS = " UNION ".join(
    f"SELECT topic_id, partition FROM {table} WHERE topic_id = ANY($1::uuid[])" for table in _TABLES
)
