"""What `magnetar cluster doctor` looks at: whether a database keeps what a cluster promises.

Each check is one finding: what is, whether that is good, and how to mend it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

from logstore.remote.bucket import Bucket, UnusableUrl
from logstore.remote.commit_store import StoreUnavailable
from logstore.remote.object_check import Comparison, Damaged, Progress, untold
from logstore.remote.object_store import NoSuchObject, ObjectsUnavailable
from logstore.remote.offload import span_of
from magnetar import __version__
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import PEERS_IN_TLS, NodeRow
from magnetar.storage.cluster_objects import objects_url
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.history import read_history
from magnetar.storage.lost_objects import compared, read_through, run_to_end
from magnetar.storage.postgres_database import PostgresDatabase
from magnetar.storage.postgres_schema import MIGRATIONS
from magnetar.storage.replication import read_replication

#: The oldest PostgreSQL that is supported by its makers.
_VERSION_MIN = 140000
#: The most connections of one node: for commits, the catalog, reads, and proofs of a standby.
_CONNECTIONS_OF_NODE = 1 + 3 + 4 + 4
_CLOCK_S = 1.0
_SLOW_MS = 5.0
_ROUND_TRIPS = 20
#: How many partitions a finding names.
_SHOWN = 5


class Verdict(Enum):
    """How good a finding is."""

    GOOD = "ok"
    DOUBTFUL = "warning"
    BAD = "error"


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: Verdict
    what: str
    #: What to do about it; empty for what is good.
    mend: str = ""


def check(
    url: str, progress: Progress = untold, *, reads_objects: bool = False
) -> Iterator[Finding]:
    """Yield what is found, the most basic first. Raises CatalogUnavailable, CatalogFailure.

    `reads_objects`: also read all objects of the bucket, and compare the CRC of each batch.
    """
    database = PostgresDatabase(url)
    try:
        yield from _server(database)
        yield from _settings(database)
        yield from _replication(database)
        yield _way(database)
        yield _clock(database)
        tables = _tables(database)
        yield tables
        if tables.verdict is Verdict.GOOD:
            yield from _losses(database)
            yield from _nodes(database)
            yield from _bucket(database, url, progress, reads_objects=reads_objects)
    finally:
        database.close()


def _ask(database: PostgresDatabase, question: str) -> Any:
    with database.statements("look at the server") as statements:
        return statements.execute(question).fetchone()[0]


def _server(database: PostgresDatabase) -> Iterator[Finding]:
    number, name = (
        _ask(database, f"SELECT current_setting('{each}')")  # noqa: S608  # two constants
        for each in ("server_version_num", "server_version")
    )
    said = f"PostgreSQL {name} at {database.shown}"
    if int(number) < _VERSION_MIN:
        yield Finding(Verdict.BAD, said, "Use PostgreSQL 14 or newer.")
    else:
        yield Finding(Verdict.GOOD, said)
    if _ask(database, "SELECT pg_is_in_recovery()"):
        yield Finding(
            Verdict.BAD,
            "the server is a standby, which nothing can be written to",
            "Name the primary, or several hosts with target_session_attrs=read-write.",
        )


def _settings(database: PostgresDatabase) -> Iterator[Finding]:
    wanted = {
        "fsync": ("on", "what was acknowledged may be lost with the server's power"),
        "full_page_writes": ("on", "a page that is torn by a power cut is lost"),
        # Nodes set it themselves, and so does this connection: it tells whether they may.
        "synchronous_commit": ("on", "a commit returns before it is durable"),
        "default_transaction_read_only": ("off", "nothing can be written, and nodes wait"),
    }
    for name, (good, otherwise) in wanted.items():
        value = _ask(database, f"SELECT current_setting('{name}')")  # noqa: S608  # constants
        if value == good:
            yield Finding(Verdict.GOOD, f"{name} = {value}")
        else:
            yield Finding(
                Verdict.BAD,
                f"{name} = {value}: {otherwise}",
                f"Set {name} = {good}, for the server, the database and the role.",
            )


def _replication(database: PostgresDatabase) -> Iterator[Finding]:
    found = read_replication(database)
    if found.may_lose:
        yield Finding(
            Verdict.BAD,
            f"{found.standbys} standbys, none of them synchronous: a fail-over loses what was"
            " acknowledged last",
            "Set synchronous_standby_names, to 'ANY 1 (*)' for example.",
        )
    elif found.names:
        yield Finding(Verdict.GOOD, f"synchronous standbys: {found.names}")
    else:
        yield Finding(
            Verdict.DOUBTFUL,
            "no standby: the loss of the server's disk loses the cluster",
            "Add a synchronous standby, or a disk that is mirrored.",
        )


def _way(database: PostgresDatabase) -> Finding:
    try:
        is_pooled = database.is_pooled()
    except CatalogUnavailable as away:
        return Finding(
            Verdict.BAD,
            f"there is no second connection: {away.detail}",
            "A node needs up to twelve: raise max_connections, or the role's limit.",
        )
    if is_pooled:
        return Finding(
            Verdict.BAD,
            "a pooler gives one session of the server to several connections, for a transaction"
            " each: the settings of a session are lost",
            "Let it pool sessions (PgBouncer: pool_mode = session), or name the server itself.",
        )
    if database.is_direct():
        return Finding(Verdict.GOOD, "the connection goes to the server itself")
    return Finding(
        Verdict.DOUBTFUL,
        "a pooler, a proxy or a translated address stands between",
        "A pooler must pool sessions, not transactions: settings of a session are relied on.",
    )


def _clock(database: PostgresDatabase) -> Finding:
    ahead_s, durations = 0.0, []
    for _ in range(_ROUND_TRIPS):
        began = time.perf_counter()
        told_s = float(_ask(database, "SELECT extract(epoch FROM clock_timestamp())"))
        durations.append(1000 * (time.perf_counter() - began))
        ahead_s = told_s - time.time()
    middle_ms = sorted(durations)[_ROUND_TRIPS // 2]
    said = f"clocks differ by {abs(ahead_s):.1f} s; a round trip takes {middle_ms:.1f} ms"
    if abs(ahead_s) > _CLOCK_S:
        return Finding(Verdict.DOUBTFUL, said, "Let all machines follow one source of time.")
    if middle_ms > _SLOW_MS:
        mend = "Each commit waits for one: bring nodes and database closer together."
        return Finding(Verdict.DOUBTFUL, said, mend)
    return Finding(Verdict.GOOD, said)


def _tables(database: PostgresDatabase) -> Finding:
    if _ask(database, "SELECT to_regclass('magnetar.cluster') IS NOT NULL"):
        version = _ask(database, "SELECT version FROM schema_version")
        if version != len(MIGRATIONS):
            return Finding(
                Verdict.DOUBTFUL,
                f"the tables are of schema {version}, this magnetar has {len(MIGRATIONS)}",
                "`magnetar cluster init` of the newest magnetar brings them up to date. Nodes of an"
                " older one run on, and cannot start again.",
            )
        cluster_id = _ask(database, "SELECT cluster_id FROM cluster")
        return Finding(Verdict.GOOD, f"cluster {cluster_id}")
    if _ask(database, "SELECT has_database_privilege(current_database(), 'CREATE')"):
        return Finding(
            Verdict.DOUBTFUL,
            "no cluster yet",
            "`magnetar cluster init` or the first node makes it.",
        )
    return Finding(
        Verdict.BAD,
        "no cluster yet, and the role may not make one",
        "GRANT CREATE ON DATABASE to the role, or let its owner run `magnetar cluster init`.",
    )


def _losses(database: PostgresDatabase) -> Iterator[Finding]:
    if loss := read_history(database).loss:
        yield Finding(
            Verdict.BAD,
            f"the cluster has halted: {loss}",
            "Bring back the server that has it; or `magnetar cluster repair --accept-loss`.",
        )


def _nodes(database: PostgresDatabase) -> Iterator[Finding]:
    catalog = Catalog(None, is_shared=True, database=database)
    rows = [row for row in catalog.nodes.members() if row.incarnation >= 0]
    live = [row for row in rows if row.is_live]
    yield Finding(Verdict.GOOD, f"{len(live)} of {len(rows)} nodes live")
    leading = catalog.nodes.led_counts()
    dead = [row.node_id for row in rows if not row.is_live and leading.get(row.node_id)]
    if dead:
        yield Finding(
            Verdict.BAD,
            f"nodes {_list(dead)} are gone, and still lead partitions",
            "Start one of them, or another node: it takes these partitions over.",
        )
    yield from _versions(live)
    yield from network_of_peers(live)
    connections = int(_ask(database, "SELECT current_setting('max_connections')"))
    needed = _CONNECTIONS_OF_NODE * max(len(live), 1)
    if connections < needed:
        yield Finding(
            Verdict.DOUBTFUL,
            f"max_connections = {connections}, of which the nodes take up to {needed}",
            "Raise max_connections.",
        )


def _bucket(
    database: PostgresDatabase, database_url: str, progress: Progress, *, reads_objects: bool
) -> Iterator[Finding]:
    catalog = Catalog(None, is_shared=True, database=database)
    url = objects_url(catalog)
    if not url:
        return
    try:
        bucket = Bucket(url)
        run_to_end(_try_bucket(bucket))
        yield Finding(Verdict.GOOD, f"the bucket {url} can be written, read, listed, deleted")
        found = run_to_end(compared(catalog, database_url, bucket, progress))
        yield _of_objects(catalog, found)
        if reads_objects:
            yield _of_damage(run_to_end(read_through(catalog, database_url, bucket, progress)))
    except (UnusableUrl, ObjectsUnavailable, NoSuchObject) as trouble:
        yield Finding(
            Verdict.BAD,
            f"the bucket {url}: {trouble}",
            "Nodes need to write, read, list and delete there: credentials, region, endpoint,"
            " policy. Until then older batches stay in the database.",
        )
    except StoreUnavailable as away:
        yield Finding(Verdict.DOUBTFUL, f"the bucket {url} could not be compared: {away}")


async def _try_bucket(bucket: Bucket) -> None:
    key = f"doctor/{uuid4()}"
    try:
        await bucket.put(key, b"magnetar")
        await bucket.read(key, 1, 1)
        found = [each.key async for page in bucket.list_keys("doctor") for each in page]
    except (ObjectsUnavailable, NoSuchObject):
        with suppress(ObjectsUnavailable):
            # It may be there whatever failed, and no sweep would delete it.
            await bucket.delete([key])
        raise
    await bucket.delete([key])
    if key not in found:
        raise NoSuchObject(f"what was written is not listed: {key}")


def _of_damage(found: list[Damaged]) -> Finding:
    if not found:
        return Finding(
            Verdict.GOOD, "each batch in the bucket has the CRC with which it was written"
        )
    shown = [f"{each.key} (at byte {each.position})" for each in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Finding(
        Verdict.BAD,
        f"{len(found)} objects have batches whose CRC does not match: {_list(shown)}{more}",
        "Bring these objects back, from a version or a copy of the bucket. Consumers fail at these"
        " batches. If they are gone for good, delete the objects, and see `magnetar cluster"
        " repair`.",
    )


def _of_objects(catalog: Catalog, found: Comparison) -> Finding:
    if not found.missing:
        return Finding(
            Verdict.GOOD,
            f"the bucket has all {found.named} objects that rows name, and {found.unnamed} that no"
            f" row names ({found.unnamed_bytes >> 20} MiB), which sweeps delete",
        )
    logs = sorted({span.key for key in found.missing if (span := span_of(key)) is not None})
    names = {row.id: row.name for row in catalog.topics([*{log.topic_id for log in logs}])}
    shown = [f"{names.get(log.topic_id, log.topic_id)}-{log.partition}" for log in logs]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return Finding(
        Verdict.BAD,
        f"{len(found.missing)} of the {found.named} objects that rows name are missing in the"
        f" bucket or too short, {found.missing[0]} for one. They hold acknowledged records of"
        f" partitions {_list(shown[:_SHOWN])}{more}",
        "Bring these objects back, from a version or a copy of the bucket. Their records cannot be"
        " read before. Is the bucket an older copy, or do other programs delete there? If they are"
        " gone for good: `magnetar cluster repair`.",
    )


def _versions(live: list[NodeRow]) -> Iterator[Finding]:
    versions = sorted({row.presence.version for row in live} | {__version__})
    if len(versions) > 1:
        yield Finding(
            Verdict.DOUBTFUL,
            f"several versions of magnetar: {_list(versions)}",
            "Bring all of them to the newest, one after the other.",
        )


def network_of_peers(live: list[NodeRow]) -> Iterator[Finding]:
    """Yield what is found of the connections between nodes."""
    encrypted: list[int] = []
    plain: list[int] = []
    for row in live:
        (encrypted if PEERS_IN_TLS in row.presence.endpoints else plain).append(row.node_id)
    hosts = sorted({row.presence.owner.partition(":")[0] for row in live})
    if encrypted and plain:
        yield Finding(
            Verdict.BAD,
            f"nodes {_list(encrypted)} speak TLS to their peers, nodes {_list(plain)} do not: they"
            " cannot reach each other",
            "Give all nodes the same security.inter.broker.protocol.",
        )
    elif encrypted:
        yield Finding(Verdict.GOOD, "the nodes speak TLS to each other")
    elif len(hosts) > 1:
        yield Finding(
            Verdict.DOUBTFUL,
            f"nodes on {_list(hosts)} send each other plain text: a stranger who changes bytes"
            " between them has the rights of a node",
            "Set security.inter.broker.protocol=SSL, or keep peers.listener on a network that no"
            " stranger reaches.",
        )


def _list(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values)
