"""What nodes say to each other besides Kafka's own requests: private messages.

Their API keys are far above Kafka's, and the listeners for clients serve none of them.

Nodes of two builds may run together during a restart. All that they say to each other, Kafka's
requests included, has one `VERSION`, which is that of the first message. A node refuses a peer that
begins with another one, so two builds with different versions make no cluster. A build that raises
it also adds a step to the tables, an empty one if need be (`storage.postgres_schema`): then it does
not start while nodes of the older build run. CHANGELOG.md tells that all nodes have to stop.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32, int64

#: Of the requests between nodes, and of what they mean. The version of `PeerHelloRequest`.
VERSION = 0


class PeerHelloRequest(Message, api_key=20_000, versions="0"):
    """The first word on a connection: which node dials, and a nonce to be proven with."""

    cluster_id: str = ""
    node_id: int32 = 0
    incarnation: int64 = 0  # how often the node has started
    connection: int64 = 0  # of this incarnation to this peer; a later one takes its place
    nonce: bytes = b""


class PeerHelloResponse(Message, api_key=20_000, versions="0"):
    node_id: int32 = 0
    nonce: bytes = b""
    proof: bytes = b""


class PeerProofRequest(Message, api_key=20_001, versions="0"):
    """The proof of the node that dials."""

    proof: bytes = b""


class PeerProofResponse(Message, api_key=20_001, versions="0"):
    error_code: int16 = 0


class CatalogChangedRequest(Message, api_key=20_002, versions="0"):
    """The catalog has a new version. Answered when the node has applied it."""

    version: int64 = 0


class CatalogChangedResponse(Message, api_key=20_002, versions="0"):
    error_code: int16 = 0  # REQUEST_TIMED_OUT: the node could not read the catalog


class FindProducersRequest(Message, api_key=20_003, versions="0"):
    """Ask a node which transactional ids it coordinates under these producer ids."""

    producer_ids: list[int64] = []


class FindProducersResponse(Message, api_key=20_003, versions="0"):
    """What is known, durably; of a producer id that is left out the node's shards know nothing."""

    producers: list[FoundProducer] = []
    shards: list[int32] = []  # the partitions of __transaction_state that are loaded


class HoldsToldRequest(Message, api_key=20_004, versions="0"):
    """A coordinator's transaction holds partitions of the node, durably. It has no answer."""

    transactional_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    topics: list[HeldTopic] = []


class HeldTopic(Struct):
    name: str = ""
    partitions: list[int32] = []


class FoundProducer(Struct):
    producer_id: int64 = 0
    coordinator_epoch: int32 = 0
    key: bytes = b""  # as in __transaction_state
    value: bytes = b""
