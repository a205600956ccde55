"""Every request that an authorizer has a say in, as values: what magnetar and Apache Kafka compare.

A request is a dict by the names of its fields; `request_of` leaves out those that a version lacks.
Nothing here changes what another request meets: what would be changed is missing, or only checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any, NamedTuple

from compat_tests.consumer_group_frames import DESCRIBE, HEARTBEAT, call_kio, schema
from compat_tests.raw import Connection, batch

PREFIX = "access-"
TOPIC, MISSING_TOPIC = f"{PREFIX}topic", f"{PREFIX}missing"
GROUP, MISSING_GROUP = f"{PREFIX}group", f"{PREFIX}no-group"
#: Has a member of KIP-848 that reads TOPIC.
CONSUMER_GROUP = f"{PREFIX}consumers"
TRANSACTIONAL_ID = f"{PREFIX}id"
#: Codes that an authorizer brings: of topics, groups, the cluster, transactional ids, tokens.
DENIALS = frozenset({29, 30, 31, 53, 65})
_NAMES = ("name", "topic", "topic_name", "group_id", "key", "resource_name", "transactional_id")
_BITS = ("cluster_authorized_operations", "topic_authorized_operations", "authorized_operations")
#: KIP-848's requests, which kafka-python lacks; their fields are those of kio's classes.
_OF_KIO = {"ConsumerGroupHeartbeat": HEARTBEAT, "ConsumerGroupDescribe": DESCRIBE}
_MODULES = ("admin", "consumer", "metadata", "producer")

Fields = Mapping[str, Any]


class Access(NamedTuple):
    """One request: the name of its API and its fields, in the versions first to last."""

    api: str
    fields: Fields
    first: int = 0
    last: int = 99
    note: str = ""

    def __str__(self) -> str:
        return f"{self.api}{self.note and f' {self.note}'}"


def requests(topic_id: Any) -> list[Access]:
    """Return the requests; `topic_id` is that of TOPIC on the broker that is asked."""
    partition = {"partition_index": 0, "partition": 0, "index": 0, "current_leader_epoch": -1}
    both = [
        {"name": name, "topic": name, "partitions": [partition]} for name in (TOPIC, MISSING_TOPIC)
    ]
    indexes = [{**each, "partitions": [0], "partition_indexes": [0]} for each in both]
    ids = {"transactional_id": TRANSACTIONAL_ID, "producer_id": 99_999, "producer_epoch": 0}
    member = {"group_id": GROUP, "member_id": "unknown", "generation_id": 1}
    offsets = {**partition, "committed_offset": 1, "committed_metadata": ""}
    data = [{**partition, "records": batch([b"x"])}]
    config = {"resource_type": 2, "resource_name": TOPIC, "configs": [], "config_entries": []}
    of_broker = {**config, "resource_type": 4, "resource_name": "1"}
    of_group = {**config, "resource_type": 32, "resource_name": GROUP}
    return [
        *_of_data(topic_id, both, partition, data, ids),
        *_of_metadata(topic_id),
        *_of_consumer_groups(),
        *_of_groups(topic_id, both, indexes, member, offsets),
        *_of_transactions(both, indexes, ids, member, offsets),
        *_of_topics(both, indexes),
        *_of_configs([config, of_broker, of_group]),
        *_of_the_cluster(),
    ]


def _of_data(
    topic_id: Any, both: list[Any], partition: Fields, data: list[Any], ids: Fields
) -> Iterator[Access]:
    named = [{"name": each["name"], "partition_data": data} for each in both]
    by_id = [{"topic_id": topic_id, "partition_data": data}]
    yield Access("Produce", {"acks": -1, "timeout_ms": 1000, "topic_data": named}, 3, 12)
    yield Access("Produce", {"acks": -1, "timeout_ms": 1000, "topic_data": by_id}, 13, 13)
    read = {**partition, "fetch_offset": 0, "partition_max_bytes": 1 << 16}
    session = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 16, "session_epoch": -1}
    topics = [{"topic": each["topic"], "partitions": [read]} for each in both]
    yield Access("Fetch", {**session, "topics": topics}, 4, 12)
    by_id = [{"topic_id": topic_id, "partitions": [read]}]
    yield Access("Fetch", {**session, "topics": by_id}, 13)
    latest = [{**each, "partitions": [{**partition, "timestamp": -1}]} for each in both]
    yield Access("ListOffsets", {"replica_id": -1, "topics": latest}, 1)
    epochs = [{**each, "partitions": [{**partition, "leader_epoch": 0}]} for each in both]
    yield Access("OffsetForLeaderEpoch", {"replica_id": -1, "topics": epochs}, 2)
    indexes = [{**each, "partition_indexes": [0]} for each in both]
    yield Access("DescribeProducers", {"topics": indexes})


def _of_metadata(topic_id: Any) -> Iterator[Access]:
    asked = {
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
        "allow_auto_topic_creation": False,
    }
    yield Access("Metadata", {**asked, "topics": None}, 1, note="all")
    named = [{"name": TOPIC}, {"name": MISSING_TOPIC}]
    yield Access("Metadata", {**asked, "topics": named}, 1)
    by_id = [{"topic_id": topic_id, "name": None}]
    yield Access("Metadata", {**asked, "topics": by_id}, 12, note="by id")
    yield Access("DescribeTopicPartitions", {"topics": named, "response_partition_limit": 100})
    yield Access("DescribeTopicPartitions", {"response_partition_limit": 100}, note="all")
    yield Access("DescribeCluster", {"include_cluster_authorized_operations": True})


def _of_groups(
    topic_id: Any, both: list[Any], indexes: list[Any], member: Fields, offsets: Fields
) -> Iterator[Access]:
    for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
        fields = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        yield Access("FindCoordinator", fields, note=f"of type {kind}", first=1)
    share = {"key_type": 2, "coordinator_keys": ["", "a:b:0"]}
    yield Access("FindCoordinator", share, note="of shares", first=6)
    join = {**member, "protocol_type": "consumer", "session_timeout_ms": 30_000}
    yield Access("JoinGroup", {**join, "rebalance_timeout_ms": 30_000, "protocols": []})
    sync = {**member, "protocol_type": "consumer", "protocol_name": "range"}
    yield Access("SyncGroup", sync)
    yield Access("Heartbeat", member)
    yield Access("LeaveGroup", {**member, "members": [{"member_id": "unknown"}]})
    commits = [{**each, "partitions": [offsets]} for each in both]
    alone = {"group_id": MISSING_GROUP, "generation_id_or_member_epoch": -1}
    yield Access("OffsetCommit", {**alone, "topics": commits}, 2, 9)
    by_id = [{"topic_id": topic_id, "partitions": [offsets]}]
    yield Access("OffsetCommit", {**alone, "topics": by_id}, 10)
    for note, topics in (("", indexes), ("all", None)):
        group = {"group_id": GROUP, "member_epoch": -1, "topics": topics}
        yield Access("OffsetFetch", {**group, "groups": [group]}, 2, 9, note)
    by_id = [{"topic_id": topic_id, "partition_indexes": [0]}]
    group = {"group_id": GROUP, "member_epoch": -1, "topics": by_id}
    yield Access("OffsetFetch", {"groups": [group]}, 10, note="by id")
    asked = {"include_authorized_operations": True}
    yield Access("DescribeGroups", {**asked, "groups": [GROUP, MISSING_GROUP]})
    yield Access("ListGroups", {})
    yield Access("DeleteGroups", {"groups_names": [MISSING_GROUP]})
    yield Access("OffsetDelete", {"group_id": MISSING_GROUP, "topics": both})


def _of_consumer_groups() -> Iterator[Access]:
    """Heartbeats of a member that does not exist: no group is made, and none is changed."""
    beat = {
        "group_id": CONSUMER_GROUP,
        "member_id": "unknown",
        "member_epoch": 7,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=30),
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }
    yield Access("ConsumerGroupHeartbeat", beat)
    for names in ((TOPIC,), (TOPIC, MISSING_TOPIC)):
        named = {**beat, "subscribed_topic_names": names}
        yield Access("ConsumerGroupHeartbeat", named, note=f"for {len(names)} topics")
    matched = {**beat, "subscribed_topic_regex": f"{PREFIX}.*"}
    yield Access("ConsumerGroupHeartbeat", matched, 1, note="for a pattern")
    yield Access("ConsumerGroupHeartbeat", {**beat, "group_id": MISSING_GROUP}, note="elsewhere")
    groups = (CONSUMER_GROUP, GROUP, MISSING_GROUP)
    asked = {"group_ids": groups, "include_authorized_operations": True}
    yield Access("ConsumerGroupDescribe", asked)


def _of_transactions(
    both: list[Any], indexes: list[Any], ids: Fields, member: Fields, offsets: Fields
) -> Iterator[Access]:
    for note, transactional_id in (("", TRANSACTIONAL_ID), ("idempotent", None)):
        fields = {**ids, "transactional_id": transactional_id, "transaction_timeout_ms": 1000}
        unknown = {"producer_id": -1, "producer_epoch": -1}
        yield Access("InitProducerId", {**fields, **unknown}, 0, 5, note)
    below = {f"v3_and_below_{name}": value for name, value in ids.items()}
    yield Access("AddPartitionsToTxn", {**below, "v3_and_below_topics": indexes}, 0, 3)
    transactions = [{**ids, "verify_only": True, "topics": indexes}]
    yield Access("AddPartitionsToTxn", {"transactions": transactions}, 4)
    yield Access("AddOffsetsToTxn", {**ids, "group_id": GROUP})
    yield Access("EndTxn", {**ids, "committed": True})
    commits = [{**each, "partitions": [offsets]} for each in both]
    alone = {**ids, **member, "member_id": "", "generation_id": -1}
    yield Access("TxnOffsetCommit", {**alone, "topics": commits})
    marker = {**ids, "transaction_result": False, "coordinator_epoch": 0, "topics": []}
    yield Access("WriteTxnMarkers", {"markers": [marker]}, 1)
    yield Access("DescribeTransactions", {"transactional_ids": [TRANSACTIONAL_ID]})
    yield Access("ListTransactions", {"duration_filter": -1})


def _of_topics(both: list[Any], indexes: list[Any]) -> Iterator[Access]:
    new = {"name": f"{PREFIX}new", "num_partitions": 1, "replication_factor": 1}
    checked = {"timeout_ms": 10_000, "validate_only": True}
    yield Access("CreateTopics", {**checked, "topics": [new]}, 2)
    growth = [{"name": TOPIC, "count": 9, "assignments": None}]
    yield Access("CreatePartitions", {**checked, "topics": growth})
    missing = {"timeout_ms": 10_000, "topic_names": [MISSING_TOPIC]}
    yield Access("DeleteTopics", {**missing, "topics": [{"name": MISSING_TOPIC}]}, 1)
    start = [{**each, "partitions": [{"partition_index": 0, "offset": 0}]} for each in both]
    yield Access("DeleteRecords", {"timeout_ms": 10_000, "topics": start})
    named = [{"topic": TOPIC, "partitions": [0]}]
    yield Access("ElectLeaders", {"timeout_ms": 10_000, "topic_partitions": named})
    moved = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}]
    yield Access("AlterPartitionReassignments", {"timeout_ms": 10_000, "topics": moved})
    yield Access("ListPartitionReassignments", {"timeout_ms": 10_000, "topics": None})
    yield Access("DescribeLogDirs", {"topics": None}, 1)


def _of_configs(resources: list[Any]) -> Iterator[Access]:
    yield Access("DescribeConfigs", {"resources": resources[:2]}, 1)
    yield Access("DescribeConfigs", {"resources": resources}, 4, note="of groups")
    unknown = {**resources[0], "resource_type": 3}
    yield Access("DescribeConfigs", {"resources": [resources[0], unknown]}, 1, note="of no type")
    yield Access("AlterConfigs", {"validate_only": True, "resources": resources[:1]})
    yield Access("IncrementalAlterConfigs", {"validate_only": True, "resources": resources})
    yield Access("ListConfigResources", {"resource_types": [16]})


def _of_the_cluster() -> Iterator[Access]:
    rule = {"resource_pattern_type": 3, "principal": "User:unknown", "host": "*", "operation": 3}
    made = {**rule, "resource_type": 2, "resource_name": "x", "permission_type": 3}
    yield Access("CreateAcls", {"creations": [made]}, 1)
    asked = {"pattern_type_filter": 3, "principal_filter": "User:none", "operation": 1}
    asked = {**asked, "resource_type_filter": 1, "permission_type": 1}
    yield Access("DescribeAcls", {**asked, "resource_name_filter": None, "host_filter": None}, 1)
    gone = {**asked, "resource_name_filter": None, "host_filter": None}
    yield Access("DeleteAcls", {"filters": [gone]}, 1)
    yield Access("DescribeUserScramCredentials", {"users": [{"name": "unknown"}]})
    deletion = {"name": "unknown", "mechanism": 1}
    yield Access("AlterUserScramCredentials", {"deletions": [deletion]})
    yield Access("DescribeClientQuotas", {"components": []})
    yield Access("AlterClientQuotas", {"entries": [], "validate_only": True})
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    yield Access("DescribeQuorum", {"topics": quorum})
    yield Access("UpdateFeatures", {"timeout_ms": 10_000, "feature_updates": []})


def message(name: str) -> Any:
    """Return kafka-python's class of a message."""
    for module in _MODULES:
        found = getattr(importlib.import_module(f"kafka.protocol.{module}"), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def key_of(access: Access) -> int:
    """Return the key of the API."""
    key: int | None = _OF_KIO.get(access.api)
    return message(f"{access.api}Request").API_KEY if key is None else key


def last_known(access: Access) -> int:
    """Return the last version that can be asked for here: kafka-python may lack the newest."""
    return 99 if access.api in _OF_KIO else message(f"{access.api}Request").max_version


def ask(connection: Connection, access: Access, version: int) -> Any:
    """Return the answer in a version, as dicts and lists."""
    if access.api not in _OF_KIO:
        response = message(f"{access.api}Response")
        return connection.call(_request_of(access, version), response).to_dict(json=False)
    key = _OF_KIO[access.api]
    made = schema(key, version, "request")
    known = {each.name: access.fields[each.name] for each in fields(made)}
    return asdict(call_kio(connection, key, version, made(**known)))


def _request_of(access: Access, version: int) -> Any:
    """Return the request in a version, without the fields that it lacks."""
    made = message(f"{access.api}Request")[version]
    return made(**_fields(made, access.fields, version))


def _fields(struct: Any, values: Fields, version: int) -> dict[str, Any]:
    found = {}
    for name, field in struct.fields.items():
        if name not in values or not field.for_version_q(version):
            continue
        value = values[name]
        if field.is_struct_array() and value is not None:
            kind = field.data_class
            value = [kind(version=version, **_fields(field, each, version)) for each in value]
        found[name] = value
    return found


def seen(answer: Any, names: Mapping[Any, str]) -> set[tuple[str, ...]]:
    """Return what an authorizer decided: denials and names, and what may be done, by path.

    Other errors are none of its business. `names` has the names of topic ids.
    """
    found: set[tuple[str, ...]] = set()
    _see(answer, "", "", names, found)
    return found


def _see(
    value: Any, path: str, within: str, names: Mapping[Any, str], found: set[tuple[str, ...]]
) -> None:
    if isinstance(value, list | tuple):
        for each in value:
            _see(each, path, within, names, found)
    if not isinstance(value, dict):
        return
    called = [str(value[name]) for name in _NAMES if value.get(name)]
    if not called and value.get("topic_id") is not None:
        called = [names.get(value["topic_id"], "an id")]
    within = "/".join(filter(None, (within, *called)))
    for name, each in value.items():
        here = f"{path}.{name}"
        if name.endswith("error_code"):
            found.add((here, within, str(int(each)) if each in DENIALS else "no denial"))
        elif name in _BITS:
            # kafka-python reads the bits as a set of operations.
            allowed = sorted(map(str, each)) if isinstance(each, set | list) else [str(each)]
            found.add((here, within, *allowed))
        else:
            _see(each, here, within, names, found)
