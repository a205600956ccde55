"""Which versions of its APIs a release of Apache Kafka served: a client meets an older broker.

For each API the release in which its last version changed, with that version. What a release did
not serve yet it is not served here; what it served below the first version of magnetar (that of
Kafka 4) is not either. Source: the table by which kafka-python 3.0 knows brokers; the release notes
for the APIs that only brokers without ZooKeeper have, which that table lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.apis.registry import Api
from magnetar.faults.names import Mistake
from wire.messages.api_versions import ApiVersionsResponse

#: The releases in order.
RELEASES = (
    *("2.8", "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9"),
    *("4.0", "4.1", "4.2", "4.3", "4.4"),
)
#: The first release whose brokers have finalized features that magnetar has.
_FEATURES_SINCE = "4.0"

_LAST_VERSIONS = """
Produce 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13
Fetch 2.8:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18
ListOffsets 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11
Metadata 2.8:11 3.1:12 4.0:13
OffsetCommit 2.8:8 3.7:9 4.2:10
OffsetFetch 2.8:7 3.0:8 3.7:9 4.2:10
FindCoordinator 2.8:3 3.0:4 3.8:5 3.9:6
JoinGroup 2.8:7 3.2:9
Heartbeat 2.8:4
LeaveGroup 2.8:4 3.2:5
SyncGroup 2.8:5
DescribeGroups 2.8:5 4.0:6
ListGroups 2.8:4 3.8:5
SaslHandshake 2.8:1
ApiVersions 2.8:3 3.9:4 4.4:5
CreateTopics 2.8:7
DeleteTopics 2.8:6
DeleteRecords 2.8:2
InitProducerId 2.8:4 3.8:5
OffsetForLeaderEpoch 2.8:4
AddPartitionsToTxn 2.8:3 3.6:4 3.8:5
AddOffsetsToTxn 2.8:3 3.8:4
EndTxn 2.8:3 3.8:4 4.0:5
WriteTxnMarkers 2.8:1 4.2:2
TxnOffsetCommit 2.8:3 3.8:4 4.0:5 4.4:6
DescribeAcls 2.8:2 3.3:3
CreateAcls 2.8:2 3.3:3
DeleteAcls 2.8:2 3.3:3
DescribeConfigs 2.8:4
AlterConfigs 2.8:2
AlterReplicaLogDirs 2.8:2
DescribeLogDirs 2.8:2 3.2:3 3.3:4 4.3:5
SaslAuthenticate 2.8:2
CreatePartitions 2.8:3
CreateDelegationToken 2.8:2 3.3:3
RenewDelegationToken 2.8:2
ExpireDelegationToken 2.8:2
DescribeDelegationToken 2.8:2 3.3:3
DeleteGroups 2.8:2 4.4:3
ElectLeaders 2.8:2
IncrementalAlterConfigs 2.8:1
AlterPartitionReassignments 2.8:0 4.1:1
ListPartitionReassignments 2.8:0
OffsetDelete 2.8:0
DescribeClientQuotas 2.8:1
AlterClientQuotas 2.8:1
DescribeUserScramCredentials 2.8:0
AlterUserScramCredentials 2.8:0
DescribeQuorum 2.8:0 3.3:1 4.0:2
UpdateFeatures 2.8:0 3.3:1 4.0:2
DescribeCluster 2.8:0 3.7:1 4.0:2
DescribeProducers 2.8:0
DescribeTransactions 3.0:0
ListTransactions 3.0:0 3.8:1 4.1:2
ConsumerGroupHeartbeat 3.7:0 4.0:1
ConsumerGroupDescribe 3.8:0 4.0:1
GetTelemetrySubscriptions 3.7:0
PushTelemetry 3.7:0
ListConfigResources 3.7:0 4.1:1
DescribeTopicPartitions 3.8:0
"""


def as_release(apis: Mapping[int, Api], release: str) -> dict[int, Api]:
    """Return the APIs that a release served, each up to its last version. Raises Mistake."""
    if release not in RELEASES:
        raise Mistake(f"there is no release {release!r}. Choose one of {', '.join(RELEASES)}.")
    last_versions = _last_versions(release)
    return {
        key: api._replace(max_version=min(api.max_version, last_versions[api.name]))
        for key, api in apis.items()
        if api.min_version <= last_versions.get(api.name, -1)
    }


def cap(response: ApiVersionsResponse, apis: Mapping[int, Api], release: str) -> None:
    """Let an ApiVersions response say no more than `apis`, and the features of the release."""
    kept = []
    for entry in response.api_keys:
        if entry.api_key in apis:
            entry.max_version = min(entry.max_version, apis[entry.api_key].max_version)
            kept.append(entry)
    response.api_keys = kept
    if RELEASES.index(release) < RELEASES.index(_FEATURES_SINCE):
        response.supported_features = []
        response.finalized_features = []
        response.finalized_features_epoch = -1


def _last_versions(release: str) -> dict[str, int]:
    last = {}
    number = RELEASES.index(release)
    for line in _LAST_VERSIONS.split("\n"):
        name, *changes = line.split() or [""]
        for change in changes:
            since, _, version = change.partition(":")
            if RELEASES.index(since) <= number:
                last[name] = int(version)
    return last
