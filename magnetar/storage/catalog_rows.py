"""The rows of the catalog as the broker knows them, and statements that several changes share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from magnetar.storage.database import Queries, Rows
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.replicas import Replicas

#: Resource, name, pattern, principal, host, operation and permission of one ACL.
AclRow = tuple[int, str, int, str, str, int, int]
ACL_COLUMNS = "resource, name, pattern, principal, host, operation, permission"
ADD_ACL = "INSERT INTO acls VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
REMOVE_ACL = (
    "DELETE FROM acls WHERE resource = ? AND name = ? AND pattern = ? AND principal = ?"
    " AND host = ? AND operation = ? AND permission = ?"
)
#: Other nodes read the quotas, or the ACLs, of a larger change all again. A request for more ACLs
#: makes changes of 256.
QUOTAS_NAMED_MAX = 16
ACLS_NAMED_MAX = 256
#: Names of a change that one statement stores: databases bound the values of one.
_NAMED_TOGETHER = 1_000
#: PostgreSQL's index of changes takes names of 2,600 bytes.
NAME_CHARACTERS_MAX = 2_048
RESOURCE_CONFIGS = "SELECT resource_type, resource_name, name, value FROM resource_configs"
CLIENT_QUOTAS = "SELECT entity, name, value FROM client_quotas"

#: Id of one delegation token, types and names of its owner and its requester, its renewers as JSON,
#: when it was issued, until when it is good, and until when it may be renewed.
TokenRow = tuple[str, str, str, str, str, str, int, int, int]

#: The address that peers dial, among the endpoints of a node; listeners of clients have names in
#: capitals. A node that speaks TLS there says the same address under both names.
PEERS = "peers"
PEERS_IN_TLS = "peers in TLS"


class Change(NamedTuple):
    """What one change was about: a kind, and the name of the thing where the kind has several."""

    kind: str
    name: str


def acl_changes(acls: Collection[AclRow]) -> list[Change]:
    """Return what a change of these ACLs was about: each of them as JSON, or all of them."""
    if len(acls) > ACLS_NAMED_MAX:
        return [Change("acls", "")]
    names = [json.dumps(acl) for acl in acls]
    # JSON may be six times as long as what PostgreSQL's index of ACLs takes.
    if any(len(name) > NAME_CHARACTERS_MAX for name in names):
        return [Change("acls", "")]
    return [Change("acls", name) for name in names]


def quota_changes(entities: Collection[str]) -> list[Change]:
    """Return what a change of the quotas of these was about: each of them, or all of them."""
    named = entities if len(entities) <= QUOTAS_NAMED_MAX else [""]
    return [Change("quotas", entity) for entity in named]


def value_rows(columns: int, count: int) -> str:
    """Return the marks of so many rows of values: `(?, ?), (?, ?)`."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * count)


def these(
    select: str, columns: str, keys: Sequence[Sequence[object]]
) -> tuple[str, Sequence[object]]:
    """Return a statement, and its values, that reads the rows whose `columns` are one of these
    keys; without any key all rows."""
    if not keys:
        return select, ()
    marks = value_rows(len(keys[0]), len(keys))
    return f"{select} WHERE ({columns}) IN (VALUES {marks})", [each for key in keys for each in key]


class TopicRow(NamedTuple):
    """One topic as it is stored; `configs` are its own settings as text."""

    id: UUID
    name: str
    partition_count: int
    replication_factor: int
    is_internal: bool
    configs: dict[str, str]
    #: The leader of each partition; none where there is one node.
    leaders: tuple[Elsewhere, ...] = ()
    #: The replicas of partitions that have assigned ones.
    assigned: Mapping[int, Replicas] = {}


class Presence(NamedTuple):
    """What a node that joins a cluster says of itself."""

    #: Which place the node has: a host and a data directory. A node of another place that has the
    #: same id is a mistake.
    owner: str
    #: By name: a listener of clients, PEERS, PEERS_IN_TLS.
    endpoints: Mapping[str, tuple[str, int]]
    rack: str
    version: str


class NodeRow(NamedTuple):
    """One node of the cluster, as the catalog has it."""

    node_id: int
    #: The number of the node's last start, or of what fenced it since.
    incarnation: int
    #: Whether its lease is good.
    is_live: bool
    presence: Presence
    #: Whether it is about to stop: it gets nothing more to lead.
    is_leaving: bool = False


def node_of(row: tuple[int, int, int, str, str, str, str, int]) -> NodeRow:
    """Return a node from its columns: id, incarnation, whether it lives, what it said, and whether
    it leaves."""
    node_id, incarnation, is_live, owner, endpoints, rack, version, is_leaving = row
    told = {name: (str(host), int(port)) for name, (host, port) in json.loads(endpoints).items()}
    presence = Presence(owner, told, rack, version)
    return NodeRow(node_id, incarnation, bool(is_live), presence, bool(is_leaving))


def replicas_of(text: str) -> Replicas:
    """Return replicas as they are stored: ids with commas between."""
    return tuple(map(int, text.split(",")))


#: A partition has the number of the move that gave it to its leader, or of that node's last start,
#: whichever is later. So a start writes nothing of what the node leads, however much that is.
_LEADERS = (
    "SELECT topic_id, node_id,"
    " CASE WHEN incarnation > leader_epoch THEN incarnation ELSE leader_epoch END"
    " FROM partition_leaders JOIN nodes USING (node_id)"
)


def topic_names(database: Queries) -> set[str]:
    """Return the name of every topic."""
    return {name for (name,) in database.execute("SELECT name FROM topics").fetchall()}


def read_node_epochs(database: Queries) -> dict[int, int]:
    """Return the number of the last start of each node."""
    return dict(database.execute("SELECT node_id, incarnation FROM nodes").fetchall())


def read_topics(database: Queries, topic_ids: Sequence[UUID] | None = None) -> list[TopicRow]:
    """Return every topic, or those of these ids, in the order of names."""

    # One query of each table for all topics: there may be tens of thousands.
    def read(select: str, topic_id: str, order: str = "") -> Rows:
        if topic_ids is None:
            return database.execute(select + order)
        marks = ", ".join("?" * len(topic_ids))
        values = [each.bytes for each in topic_ids]
        return database.execute(f"{select} WHERE {topic_id} IN ({marks}){order}", values)

    return topics_of(
        read("SELECT topic_id, name, value FROM topic_configs", "topic_id"),
        read(
            _LEADERS,
            "topic_id",
            " ORDER BY topic_id, partition",
        ),
        read("SELECT topic_id, partition, node_ids FROM assigned_replicas", "topic_id"),
        read(
            "SELECT id, name, partition_count, replication_factor, internal FROM topics",
            "id",
            " ORDER BY name",
        ),
    )


def topics_of(
    configs: Iterable[tuple[bytes, str, str]],
    leaders: Iterable[tuple[bytes, int, int]],
    assigned: Iterable[tuple[bytes, int, str]],
    rows: Iterable[tuple[bytes, str, int, int, int]],
) -> list[TopicRow]:
    """Return topics from the rows of their four tables; leaders in the order of partitions."""
    texts: dict[bytes, dict[str, str]] = {}
    for topic_id, name, value in configs:
        texts.setdefault(topic_id, {})[name] = value
    placed: dict[bytes, list[Elsewhere]] = {}
    for topic_id, node_id, epoch in leaders:
        placed.setdefault(topic_id, []).append(Elsewhere(node_id, epoch))
    replicas: dict[bytes, dict[int, Replicas]] = {}
    for topic_id, partition, node_ids in assigned:
        replicas.setdefault(topic_id, {})[partition] = replicas_of(node_ids)
    return [
        TopicRow(
            UUID(bytes=topic_id),
            name,
            partitions,
            factor,
            bool(internal),
            texts.get(topic_id, {}),
            tuple(placed.get(topic_id, ())),
            replicas.get(topic_id, {}),
        )
        for topic_id, name, partitions, factor, internal in rows
    ]


def insert_topics(database: Queries, topics: Sequence[TopicRow]) -> set[str]:
    """Store topics, with their own settings and the leaders of their partitions, except for those
    whose names are taken: return these names."""
    names = [(topic.name,) for topic in topics]
    found = database.execute(*these("SELECT name FROM topics", "name", names))
    taken = {name for (name,) in found.fetchall()}
    new = [topic for topic in topics if topic.name not in taken]
    # An import can bring back, with its id, a topic that was deleted here.
    forget_deleted(database, [topic.id for topic in new])
    database.executemany(
        "INSERT INTO topics VALUES (?, ?, ?, ?, ?)",
        [(each.id.bytes, *each[1:4], int(each.is_internal)) for each in new],
    )
    database.executemany(
        "INSERT INTO topic_configs VALUES (?, ?, ?)",
        [(each.id.bytes, name, value) for each in new for name, value in each.configs.items()],
    )
    database.executemany(
        _INSERT_LEADERS,
        [_leaders(each.id, 0, [one.node_id for one in each.leaders]) for each in new],
    )
    for each in new:
        insert_assigned(database, each.id, each.assigned)
    return taken


#: One statement for a topic, however many partitions it has: a statement for each took 0.9 s for
#: 10,000, and kept the catalog locked. An object, since the two databases have no common function
#: for an array.
_INSERT_LEADERS = (
    "INSERT INTO partition_leaders SELECT ?, CAST(key AS INTEGER), node_id, incarnation"
    " FROM json_each(?) JOIN nodes ON node_id = CAST(CAST(value AS TEXT) AS INTEGER)"
)


def _leaders(topic_id: UUID, first: int, node_ids: Iterable[int]) -> tuple[bytes, str]:
    return topic_id.bytes, json.dumps(dict(enumerate(node_ids, first)))


def insert_leaders(database: Queries, topic_id: UUID, first: int, node_ids: Iterable[int]) -> None:
    """Store the leaders of a topic's partitions from `first` on."""
    database.execute(_INSERT_LEADERS, _leaders(topic_id, first, node_ids))


def insert_assigned(database: Queries, topic_id: UUID, assigned: Mapping[int, Replicas]) -> None:
    """Store the replicas of partitions, in place of those that they have."""
    database.executemany(
        "INSERT INTO assigned_replicas VALUES (?, ?, ?)"
        " ON CONFLICT (topic_id, partition) DO UPDATE SET node_ids = excluded.node_ids",
        [
            (topic_id.bytes, index, ",".join(map(str, replicas)))
            for index, replicas in assigned.items()
        ],
    )


def insert_changes(database: Queries, version: int, changes: Sequence[Change]) -> None:
    """Store what the change of that number was about."""
    # By few statements: one for each of 256 ACLs took as long as these themselves.
    for first in range(0, len(changes), _NAMED_TOGETHER):
        part = changes[first : first + _NAMED_TOGETHER]
        database.execute(
            "INSERT INTO changes SELECT ?, column1, column2"  # noqa: S608  # marks
            f" FROM (VALUES {value_rows(2, len(part))}) AS named WHERE true ON CONFLICT DO NOTHING",
            (version, *(text for change in part for text in change)),
        )


def insert_start(database: Queries, node_id: int, incarnation: int, said: Presence) -> None:
    """Store a start of a node, and give it a lease."""
    database.execute(
        "INSERT INTO nodes (node_id, incarnation, lease_until, owner, endpoints, rack, version)"
        " VALUES (?, ?, lease_end(), ?, ?, ?, ?)"
        " ON CONFLICT (node_id) DO UPDATE SET incarnation = excluded.incarnation,"
        " commit_seq = 0, is_leaving = 0, lease_until = excluded.lease_until,"
        " owner = excluded.owner,"
        " endpoints = excluded.endpoints, rack = excluded.rack, version = excluded.version",
        (node_id, incarnation, said.owner, json.dumps(said.endpoints), said.rack, said.version),
    )


def replace_nodes(database: Queries, node_ids: Collection[int]) -> None:
    """Let these be the nodes, leading nothing yet. They have no changes to read."""
    database.execute("DELETE FROM partition_leaders")
    database.execute("DELETE FROM changes")
    known = database.execute("SELECT node_id FROM nodes").fetchall()
    gone = [row for row in known if row[0] not in node_ids]
    database.executemany("DELETE FROM nodes WHERE node_id = ?", gone)
    database.executemany(
        "INSERT INTO nodes (node_id, incarnation, lease_until)"
        " VALUES (?, 0, lease_now()) ON CONFLICT DO NOTHING",
        [(each,) for each in node_ids],
    )


def next_epoch(database: Queries) -> int:
    """Count one more start and return its number."""
    row = database.execute(
        "UPDATE cluster SET broker_epoch = broker_epoch + 1 RETURNING broker_epoch"
    ).fetchone()
    return int(row[0])


def forget_deleted(database: Queries, gone: Iterable[UUID]) -> None:
    """Forget deleted topics whose files are gone."""
    database.executemany(
        "DELETE FROM deleted_topics WHERE id = ?", [(topic_id.bytes,) for topic_id in gone]
    )
