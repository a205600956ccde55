"""Kafka's message schemas, read out of its jars: JSON resources with `//` comment lines.

Only facts are taken: names, types, versions, tags, defaults. The texts that explain them stay
there.
"""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

from tools.reference_kafka import VERSION, fetch

#: The jars that hold schemas of ours: what travels, and what lies in files.
_SOURCES = (
    "kafka-clients",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-metadata",
)

_HOLDS_A_SCHEMA = re.compile(r"common/(message|metadata)/.*\.json")

#: Not declared: messages between brokers and controllers, and records of metadata snapshots.
_BETWEEN_BROKERS = (
    r"(AddRaftVoter|AllocateProducerIds|AlterPartition|AssignReplicasToDirs|BeginQuorumEpoch|"
    r"BrokerHeartbeat|BrokerRegistration|ControllerRegistration|DeleteShareGroupState|"
    r"EndQuorumEpoch|Envelope|FetchSnapshot|InitializeShareGroupState|ReadShareGroupState|"
    r"ReadShareGroupStateSummary|RemoveRaftVoter|UnregisterBroker|UnregisterController|"
    r"UpdateRaftVoter|Vote|WriteShareGroupState)(Request|Response)|"
    r"AbortedTxn|DefaultPrincipalData|ControlRecordTypeSchema|KRaftVersionRecord|"
    r"LeaderChangeMessage|SnapshotFooterRecord|SnapshotHeaderRecord|VotersRecord"
)
#: Not declared: share and streams groups, which nothing here serves (KIP-932, KIP-1071). What
#: describes share groups is: the console shows those of Apache Kafka.
_NOT_SERVED = (
    r"(Alter|Delete)ShareGroupOffsets(Request|Response)|"
    r"Share(Acknowledge|Fetch)(Request|Response)|ShareGroup(?!Describe).*|StreamsGroup.*"
)
#: Not declared: `wire.records.control` encodes a marker's value, without a compiled message.
_BY_HAND = "EndTxnMarker"
NOT_OURS = re.compile(f"{_BETWEEN_BROKERS}|{_NOT_SERVED}|{_BY_HAND}")

#: Of a Kafka cluster's metadata log: what says which topics there were, and with what settings.
METADATA_OURS = frozenset(
    {
        "AbortTransactionRecord",
        "BeginTransactionRecord",
        "ConfigRecord",
        "EndTransactionRecord",
        "PartitionRecord",
        "ProducerIdsRecord",
        "RemoveTopicRecord",
        "TopicRecord",
    }
)

Schema = dict[str, Any]


def read_schemas() -> dict[str, Schema]:
    """Return every schema that is ours, by name, as it stands in the JSON."""
    schemas: dict[str, Schema] = {}
    for name in _SOURCES:
        with zipfile.ZipFile(fetch() / f"{name}-{VERSION}.jar") as archive:
            for entry in archive.namelist():
                if _HOLDS_A_SCHEMA.fullmatch(entry):
                    schema = _parse(archive.read(entry).decode())
                    if is_ours(schema):
                        schemas[schema["name"]] = schema
    return schemas


def is_ours(schema: Schema) -> bool:
    """Return whether magnetar declares the message: Kafka has not removed it, and we use it."""
    name: str = schema["name"]
    if schema["type"] == "metadata":
        return name in METADATA_OURS
    return schema["validVersions"] != "none" and not NOT_OURS.fullmatch(name)


def stable_versions(schema: Schema, request: Schema | None) -> tuple[int, int]:
    """First and last version; the last one is left out where the request's is marked unstable."""
    first, _, last = schema["validVersions"].partition("-")
    newest = int(last or first)
    unstable = schema.get("latestVersionUnstable") or (request or {}).get("latestVersionUnstable")
    return int(first), newest - 1 if unstable else newest


def snake_case(name: str) -> str:
    """`V3AndBelowTopics` -> `v3_and_below_topics`."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def _parse(text: str) -> Schema:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    schema: Schema = json.loads("\n".join(lines))
    return schema
