"""The table of APIs: key -> name -> the module that declares its request and response.

Modules are imported when they are asked for, so that a broker's start pays only for what it serves.
"""

from __future__ import annotations

import re
from importlib import import_module

from wire.errors import WireError
from wire.message import Message

#: Every API of Apache Kafka 4.3 that a client may call, by key.
API_NAMES: dict[int, str] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    37: "CreatePartitions",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    55: "DescribeQuorum",
    57: "UpdateFeatures",
    60: "DescribeCluster",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    74: "ListConfigResources",
    75: "DescribeTopicPartitions",
    76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe",
    78: "ShareFetch",
    79: "ShareAcknowledge",
    88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets",
    91: "AlterShareGroupOffsets",
    92: "DeleteShareGroupOffsets",
}


def request_class(api_key: int) -> type[Message]:
    """The request of an API. Raises WireError for a key that has none."""
    return _class_of(api_key, "Request")


def response_class(api_key: int) -> type[Message]:
    """The response of an API. Raises WireError for a key that has none."""
    return _class_of(api_key, "Response")


def module_name(api_name: str) -> str:
    """`AddPartitionsToTxn` -> `wire.messages.add_partitions_to_txn`."""
    return "wire.messages." + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()


def _class_of(api_key: int, kind: str) -> type[Message]:
    name = API_NAMES.get(api_key)
    if name is None:
        raise WireError(f"there is no API with key {api_key}")
    found: type[Message] = getattr(import_module(module_name(name)), name + kind)
    return found
