"""The nodes that share a catalog: their ids and addresses, and which of them leads or coordinates.

A broker may be the only node. Then every answer is its own id, and there is no other node to tell
of a change. `Peers` is the way to the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from coordinator.partitioning import partition_for
from coordinator.transactions import joint
from coordinator.transactions.metadata import TopicPartition
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener
from magnetar.logging import get_logger
from magnetar.runtime.catalog_watch import CatalogWatch
from magnetar.runtime.peers import Peers
from magnetar.storage.catalog import Catalog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Elsewhere, leader_id, shard_missing
from magnetar.storage.replicas import Known, Replicas, check_assignment
from magnetar.storage.topic_counts import ONE_DISK
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: How long a node of a cluster waits, before it serves, until the others know of its start. A
#: client that has found the node, and then asks one that does not know it, takes it for gone.
ANNOUNCED_S = 0.25

_log = get_logger("nodes")

#: A node's id, the host and port at which clients of one listener reach it, and its rack.
Address = tuple[int, str, int, str | None]
#: The name of a listener -> where its clients reach each node.
Reached = Callable[[str], list[Address]]


def as_configured(listeners: Mapping[int, Sequence[Listener]], rack: str | None) -> Reached:
    """Return where clients reach nodes whose listeners are known, with the ports they have."""
    return lambda name: [
        (node_id, one.advertised_host, one.advertised_port, rack)
        for node_id in sorted(listeners)
        for one in listeners[node_id]
        if one.name == name
    ]


class Nodes:
    """All nodes, seen from this one."""

    def __init__(
        self,
        topics: Topics,
        catalog: Catalog,
        config: BrokerConfig,
        reached: Reached,
        watch: CatalogWatch | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`reached`: where clients reach each node. `watch`, `peers`: None for a node that is
        alone."""
        self._watch = watch
        self._topics = topics
        self._catalog = catalog
        self._config = config
        self._reached = reached
        self._placement = topics.placement
        self._peers = peers
        #: The nodes that have not confirmed the last change, each named in the log once.
        self._unconfirmed: frozenset[int] = frozenset()
        self.own_id = topics.placement.own_id
        self.is_alone = topics.placement.is_alone

    @property
    def ids(self) -> Sequence[int]:
        """The nodes that serve, in order."""
        return self._placement.node_ids

    @property
    def known(self) -> Known:
        """All nodes that may be replicas."""
        return self._placement.nodes

    def check_assignment(self, replicas: Sequence[int], factor: int | None = None) -> Replicas:
        """Return the replicas of an assignment of one partition, if these nodes can have it.

        Raises as `magnetar.storage.replicas.check_assignment`.
        """
        one_disk = "" if self._placement.moves else ONE_DISK
        return check_assignment(replicas, self.known, factor=factor, one_disk=one_disk)

    @property
    def controller_id(self) -> int:
        """The node to which clients send requests that administer the cluster."""
        return self._placement.node_ids[0]

    def addresses(self, listener: Listener) -> list[Address]:
        """Return where clients of `listener` reach each node."""
        if self.is_alone:
            host, port = listener.advertised_host, listener.advertised_port
            return [(self.own_id, host, port, self._config.broker_rack)]
        return self._reached(listener.name)

    def epoch_of(self, node_id: int, own_epoch: int) -> int:
        """Return the epoch of a node's last start; `own_epoch` is this node's."""
        is_own = node_id == self.own_id
        return own_epoch if is_own else self._topics.placement.at(node_id).leader_epoch

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Return the node that leads a partition; None: there is no such partition."""
        found = self._topics.by_name(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        led = found.partitions[partition]
        return led.node_id if isinstance(led, Elsewhere) else self.own_id

    def is_led_here(self, topic: str, partition: int) -> bool:
        """Return whether this node leads a partition and has opened it."""
        found = self._topics.by_name(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return False
        return not isinstance(found.partitions[partition], Elsewhere)

    def leading(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        leader = self.leader_of(topic, partition)
        if leader is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}"
            )
        return leader

    def node_of(self, transactional_id: str) -> int:
        """Return the node that coordinates a transactional id. A child has its parent's."""
        return self._coordinator(TRANSACTION_STATE, transactional_id)

    def node_of_group(self, group_id: str) -> int:
        """Return the node that coordinates a group."""
        return self._coordinator(CONSUMER_OFFSETS, group_id)

    def _coordinator(self, topic: str, coordinated_id: str) -> int:
        found = self._topics.by_name(topic)
        if found is None:
            return self.own_id  # Several nodes have the topic from their first start.
        shard = self._shard_of(topic, coordinated_id, len(found.partitions))
        return leader_id(found.partitions[shard], self.own_id)

    def _shard_of(self, topic: str, coordinated_id: str, count: int) -> int:
        if topic == CONSUMER_OFFSETS:
            return partition_for(coordinated_id, count)
        separator: str = self._config.joint_transactions_separator
        return joint.coordinator_partition(coordinated_id, separator, count)

    def shards_of(self, topic: str, ids: Iterable[str | None]) -> Iterator[TopicPartition]:
        """Yield the shard of each of these ids; `topic` is a coordinator's."""
        found = self._topics.by_name(topic)
        if found is not None:
            count = len(found.partitions)
            for each in ids:
                if each:
                    yield TopicPartition(topic, self._shard_of(topic, each, count))

    def check_shards(self, topic: str) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS while a shard of a coordinator's topic is on its way
        here: a list of all that this node coordinates would lack what the shard has."""
        found = self._topics.by_name(topic)
        for one in () if found is None else found.partitions:
            if isinstance(one, Elsewhere) and one.node_id == self.own_id:
                raise shard_missing(topic, is_coming=True)

    async def see_changes(self) -> int:
        """Apply what other nodes have changed; return the catalog's version that is applied now."""
        return 0 if self._watch is None else await self._watch.catch_up()

    def give_up(self, node_id: int) -> None:
        """Wait no longer for the answers of a node whose lease has ended.

        What it was asked is asked again: the next leader, or the next coordinator.
        """
        if self._peers is not None:
            self._peers.give_up(node_id)

    async def announce_start(self) -> None:
        """Tell the other nodes of this start, and so of new leader epochs.

        First it reads the changes that they could not tell this node while it did not listen.
        """
        if self._peers is None:
            return
        try:
            version = await self.see_changes()
        except CatalogUnavailable as away:
            _log.warning("the other nodes hear of this start later", reason=str(away))
        else:
            await self._peers.tell_catalog_changed(version)

    async def tell_changes(self) -> None:
        """Return when every node has applied the catalog's changes so far, or after a second.

        The log names a node that did not answer, once until it confirms a change. That node reads
        the catalog by itself soon.
        """
        if self._peers is None:
            return
        missing = frozenset(await self._peers.tell_catalog_changed(self._catalog.changes.count()))
        # Once for each such node, however many changes it misses.
        if new := missing - self._unconfirmed:
            _log.warning("nodes have not confirmed a change", node_ids=sorted(new))
        self._unconfirmed = missing
