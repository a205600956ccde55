"""Sample requests, made from the declarations of the messages.

Every list of structs in a request gets one element. Every other field gets the value that is known
for its name, or else its default.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from wire import messages
from wire.message import Message, Struct
from wire.schema import fields_of
from wire.types import Array, Nested

Fields = Mapping[str, Any]

#: Values that differ in one API. A key is a field's name, or "Struct.field" where a name means two
#: things in one request.
_OWN: dict[str, Mapping[str, Any]] = {
    "AlterClientQuotas": {
        "entity_type": "client-id",
        "entity_name": "trace",
        "key": "producer_byte_rate",
        "value": 1e9,
    },
    "AlterConfigs": {"AlterableConfig.name": "retention.ms", "value": "86400000"},
    "AlterPartitionReassignments": {"replicas": None},
    "CreateTopics": {"assignments": [], "configs": []},
    "CreatePartitions": {"assignments": None},
    "DescribeClientQuotas": {"entity_type": "client-id", "match_type": 2, "match": None},
    "DescribeConfigs": {"configuration_keys": None},
    "DescribeQuorum": {"topic_name": "__cluster_metadata"},
    "DescribeUserScramCredentials": {"users": None},
    "IncrementalAlterConfigs": {"AlterableConfig.name": "retention.ms", "value": "86400000"},
    "InitProducerId": {"transactional_id": "trace-init"},
    "JoinGroup": {"JoinGroupRequestProtocol.name": "range"},
    "SaslHandshake": {"mechanism": "PLAIN"},
    "UpdateFeatures": {"feature": "transaction.version", "max_version_level": 2},
    "WriteTxnMarkers": {"producer_id": 1, "producer_epoch": 0, "transaction_version": 1},
}
#: The values of fields that have one name and one meaning all over the protocol.
_VALUES: dict[str, Any] = {
    "acks": -1,
    "client_software_name": "trace",
    "client_software_version": "1",
    "committed": True,
    "committed_offset": 1,
    "fetch_offset": 0,
    "forgotten_topics_data": [],
    "last_fetched_epoch": -1,
    "max_bytes": 1 << 20,
    "min_bytes": 1,
    "num_partitions": 1,
    "offset": -1,
    "partition_indexes": [0],
    "partition_max_bytes": 1 << 20,
    "partitions": [0],
    "principal": "User:trace",
    "protocol_name": "range",
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 60_000,
    "replication_factor": 1,
    "resource_type": 2,
    "resource_types": [2],
    "response_partition_limit": 100,
    "session_epoch": -1,
    "session_timeout_ms": 45_000,
    "timeout_ms": 30_000,
    "timestamp": -1,
    "transaction_timeout_ms": 60_000,
}
_ABSENT = object()


def message_classes(suffix: str) -> dict[str, type[Message]]:
    """Return the messages whose names end with `suffix`, by the rest of the name."""
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(messages.__path__, f"{messages.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Message) and name.endswith(suffix):
                found[name.removesuffix(suffix)] = value
    return found


def sample(
    api: str, request_class: type[Message], version: int, world: Fields, values: Fields
) -> Message:
    """Return a request. `values` go first, then what is known for the API, then the world's."""
    made = _filled(request_class, version, {**_VALUES, **world, **_OWN.get(api, {}), **values})
    assert isinstance(made, Message)
    return made


def _filled(struct: Any, version: int, values: Fields) -> Struct:
    given: dict[str, Any] = {}
    for field in fields_of(struct):
        if version not in field.versions or version in field.tagged:
            continue
        value = values.get(f"{struct.__name__}.{field.name}", values.get(field.name, _ABSENT))
        kind = field.type
        # A value that is not empty is meant for a list of numbers of the same name (`partitions`).
        if isinstance(kind, Array) and isinstance(kind.element, Nested) and value != []:
            value = value and [_filled(kind.element.struct, version, values)]
        if value is not _ABSENT:
            given[field.name] = value
    made: Struct = struct(**given)
    return made


def errors(answer: Any) -> set[int]:
    """Return all error codes in an answer, NONE left out."""
    found: set[int] = set()
    for field in fields_of(type(answer)):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code") and value:
            found.add(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                found |= errors(each)
    return found
