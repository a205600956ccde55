"""The topics of the broker: made, grown, and kept as the catalog has them.

Which topics are found is `topic_index`; how they go `topic_deletion`; their settings
`topic_configs`. The catalog is written first, the logs follow: a crash in between leaves
directories that the next start makes or removes. CreateTopics, CreatePartitions and DeleteTopics
take many turns of the event loop, one change at a time, while other requests are served. A new
topic is found once it is whole, and a deleted one goes in one step, so no request sees half a
topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

from logstore.partition.log import PartitionLog
from logstore.remote.commit_store import NodeFenced
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import check_topic_configs
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere, NotLeader, Placement, local
from magnetar.storage.led_partitions import LedPartitions
from magnetar.storage.logs import Logs
from magnetar.storage.replicas import Replicas
from magnetar.storage.topic import Topic, being_created, in_parts, no_topic, opening
from magnetar.storage.topic_configs import TopicConfigs, stored_settings
from magnetar.storage.topic_counts import (
    BROKER_DEFAULT,
    check_increase,
    counts_of_new,
    internal_configs,
)
from magnetar.storage.topic_deletion import TopicDeletion
from magnetar.storage.topic_index import TopicIndex
from magnetar.storage.topic_names import CLUSTER_METADATA, INTERNAL, check_name
from magnetar.storage.topics_together import ToOpen, open_partitions, store_topics
from magnetar.storage.whole_changes import CATALOG, WholeChanges
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Partitions of topics that one step reads of the catalog: a few milliseconds.
_READ_TOGETHER = 250


class Topics:
    """Every topic of the broker, or of all nodes that share its catalog."""

    def __init__(
        self,
        catalog: Catalog,
        logs: Logs,
        config: BrokerConfig,
        placement: Placement | None = None,
    ) -> None:
        """`placement`: which node leads what; None if there is one node."""
        self._catalog = catalog
        self.placement = placement or Placement(config.node_id)
        #: In a cluster: the partitions that come and go.
        self.led = LedPartitions(self.placement, logs)
        self._logs = logs
        self._config = config
        self.index = TopicIndex()
        #: The lookups of the index, which nearly every request asks.
        self.by_name = self.index.by_name
        self.by_id = self.index.by_id
        self.all = self.index.all
        #: Those that take many turns of the event loop.
        self.changes = WholeChanges()
        self.deletion = TopicDeletion(self.index, catalog, logs, self.placement, self.changes)
        leaving = self.deletion.leaving
        self.configs = TopicConfigs(self.index, catalog, logs, config, leaving)
        self._is_stopped = False

    async def start(self) -> None:
        """Open the logs of every topic in the catalog, leaving the event loop free for signals."""
        defaults = self.configs.defaults()
        rows = [(row, stored_settings(row, defaults)) for row in self._catalog.topics()]
        logs = await self._logs.open_together(
            opening(row, index, settings)
            for row, settings in rows
            for index in self.placement.led_here(row.leaders, 0, row.partition_count)
        )
        opened = iter(logs)
        for row, settings in rows:
            partitions = self.placement.joined(row.leaders, 0, row.partition_count, opened)
            self.index.enter(Topic(row, settings, partitions))

    def is_internal(self, name: str) -> bool:
        """Whether a topic of that name is written by the coordinators alone."""
        return name in INTERNAL

    def partition(self, name: str, index: int) -> PartitionLog:
        """Return one partition's log. Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""
        topic = self.by_name(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{name} has {len(topic.partitions)} partitions, none is {index}",
            )
        found = topic.partitions[index]
        if isinstance(found, Elsewhere):
            raise NotLeader(name, index, found)
        return found

    def check_new(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Raise unless a topic of this name, with these configs, may be made; change nothing.

        In Kafka's order: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_CONFIG.
        """
        check_name(name)
        if name == CLUSTER_METADATA:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is no topic of this broker.")
        self.index.check_free(name)
        check_topic_configs(configs)

    def new_row(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
        assigned: Sequence[Replicas] = (),
    ) -> TopicRow:
        """Return the topic that `create` would store, with a fresh id, after `check_new`.

        `assigned`: the replicas of each partition; none: the placement chooses. -1 stands for the
        broker's default. Raises INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, POLICY_VIOLATION.
        """
        asked = (name, partition_count, replication_factor, self._config)
        counts = counts_of_new(*asked, self.placement.replicas_max)
        texts = {key: text for key, text in configs.items() if text is not None}
        topic_id = uuid.uuid4()
        leaders, kept = self.placement.of_new(topic_id, 0, counts[0], assigned)
        placed = tuple(self.placement.at(node_id) for node_id in leaders)
        return TopicRow(topic_id, name, *counts, name in INTERNAL, texts, placed, kept)

    def create(
        self,
        name: str,
        partition_count: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """Create a topic durably and return it, in one step: fit for a few partitions.

        Raises as `check_new` and `new_row`, and LEADER_NOT_AVAILABLE where another node was faster.
        """
        self.check_new(name, configs or {})
        row = self.new_row(name, partition_count, replication_factor, configs or {})
        # First: otherwise a start would look in these logs for what a former topic's had.
        self._logs.free(row.name, row.partition_count)
        if self._catalog.add_topics([row]):
            raise being_created(row.name)
        settings = stored_settings(row, self.configs.defaults())
        opened = (
            self._logs.open(row.name, index, row.id, settings)
            for index in self.placement.led_here(row.leaders, 0, row.partition_count)
        )
        partitions = self.placement.joined(row.leaders, 0, row.partition_count, opened)
        return self.index.enter(Topic(row, settings, partitions))

    async def create_in_turns(self, row: TopicRow) -> Topic:
        """Create one topic as `create_together`; raise why it is refused."""
        (outcome,) = await self.create_together([row])
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    async def create_together(self, rows: Sequence[TopicRow]) -> list[Topic | KafkaError]:
        """Create topics that `new_row` has returned, while other requests are served.

        By one transaction; each is found once all are whole. Returns them, or why one is refused.
        """
        outcomes: dict[str, Topic | KafkaError] = {}
        for row in rows:
            try:
                self.index.reserve(row.name)
            except KafkaError as refusal:
                outcomes[row.name] = refusal.with_traceback(None)  # It leads here: a cycle.
        if reserved := [row for row in rows if row.name not in outcomes]:
            outcomes |= await self.changes.whole(self._create(reserved))
        return [outcomes[row.name] for row in rows]

    async def _create(self, rows: Sequence[TopicRow]) -> dict[str, Topic | KafkaError]:
        try:
            async with self.changes.turn:
                # Before the catalog has the topics, as in `create`.
                await self._logs.free_all()
                refused = await CATALOG.run(partial(store_topics, self._catalog, rows))
                new = [row for row in rows if row.name not in refused]
                made = await self._open_topics(new)
                return {**refused, **{topic.name: topic for topic in made}}
        finally:
            self.index.release(row.name for row in rows)

    async def _open_topics(self, rows: Sequence[TopicRow]) -> list[Topic]:
        """Open the logs of topics that the catalog has, let these be found, and return them."""
        defaults = self.configs.defaults()
        to_open = [ToOpen(row, stored_settings(row, defaults)) for row in rows]
        opened = await open_partitions(self._logs, self.placement, to_open)
        now = self.configs.defaults()
        made = []
        for (row, settings, _), partitions in zip(to_open, opened, strict=True):
            # The broker's settings may have changed while the logs were opened.
            latest = settings if now == defaults else stored_settings(row, now)
            topic = Topic(row, latest, partitions)
            self.configs.catch_up(topic.name, topic.local, settings, latest)
            made.append(self.index.enter(topic))
        return made

    def ensure(self, name: str) -> Topic:
        """Return the topic, created in one step with the broker's defaults if it is missing.

        Raises LEADER_NOT_AVAILABLE while another request creates it, and as `create`.
        """
        if name in self.index.coming:
            raise being_created(name)
        if name in INTERNAL:
            return self.ensure_internal(name)
        return self.by_name(name) or self.create(name)

    def ensure_internal(self, name: str) -> Topic:
        """Return `__transaction_state` or `__consumer_offsets`, created if it is missing.

        Raises COORDINATOR_NOT_AVAILABLE while a CreateTopics request creates it.
        """
        assert name in INTERNAL
        if name in self.index.coming:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} is being created.")
        return self.by_name(name) or self.create(name, configs=internal_configs(name, self._config))

    def check_growth(self, name: str, partition_count: int) -> Topic:
        """Return the topic that `grow` would give `partition_count` partitions; change nothing.

        Raises UNKNOWN_TOPIC_OR_PARTITION, and as `magnetar.storage.topic_counts.check_increase`.
        """
        topic = self.by_name(name)
        if topic is None or topic.id in self.deletion.leaving:
            raise no_topic(name)
        check_increase(name, len(topic.partitions), partition_count)
        return topic

    async def grow(
        self, name: str, partition_count: int, assigned: Sequence[Replicas] = ()
    ) -> Topic:
        """Add partitions durably, up to `partition_count`, while other requests are served.

        `assigned`: the replicas of each new one; none: the placement chooses. They are found once
        all of them are there. Raises as `check_growth`.
        """
        return await self.changes.whole(self._grow(name, partition_count, assigned))

    async def _grow(self, name: str, partition_count: int, assigned: Sequence[Replicas]) -> Topic:
        async with self.changes.turn:
            # Once more: the topic may have grown or gone while this change waited for its turn.
            topic = self.check_growth(name, partition_count)
            await self._logs.free_all()
            counts = (len(topic.partitions), partition_count)
            placed = self.placement.of_new(topic.id, *counts, assigned)
            row = await CATALOG.run(partial(self._catalog.grow_topic, topic.id, *counts, *placed))
            if row is None:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS, f"another node has just changed {name}: try again"
                )
            await self._open_more(topic, row)
            return topic

    async def _open_more(self, topic: Topic, row: TopicRow) -> None:
        """Open the logs of the partitions that the catalog has and the topic has not."""
        settings = topic.settings
        to_open = ToOpen(row, settings, len(topic.partitions))
        (partitions,) = await open_partitions(self._logs, self.placement, [to_open])
        self.configs.catch_up(topic.name, local(partitions), settings, topic.settings)
        topic.partitions += partitions
        topic.assigned = row.assigned
        self.index.version += 1

    async def refresh(self, topic_ids: Iterable[UUID]) -> None:
        """Make topics as the catalog has them: other nodes may have changed them.

        What this node has changed itself stays as it is. Other changes go on between parts of many.
        """
        known = [(each, self.by_id(each)) for each in topic_ids]
        known.sort(key=lambda one: not (one[1] and one[1].is_internal))  # coordinators' first
        counted = ((each, len(topic.partitions) if topic else 1) for each, topic in known)
        for part in in_parts(counted, _READ_TOGETHER):
            if not self._is_stopped:
                await self.changes.alone(partial(self._refresh, part))

    async def _refresh(self, topic_ids: Sequence[UUID]) -> None:
        # Not in a thread: this node's own changes would be newer than what was read.
        found = {row.id: row for row in self._catalog.topics(topic_ids)}
        rows = [found[each] for each in topic_ids if each in found]
        known = [(topic, row) for row in rows if (topic := self.by_id(row.id)) is not None]
        defaults = self.configs.defaults()
        for topic, row in known:
            if row.configs != topic.configs:
                self.configs.apply(topic, row.configs, stored_settings(row, defaults))
        await self.deletion.drop(each for each in topic_ids if each not in found)
        await self._become(rows)
        for topic, row in known:
            topic.assigned = row.assigned
        if self.placement.moves:
            await self.led.follow(known)

    async def _become(self, rows: Iterable[TopicRow]) -> None:
        """Let topics be there, with all the partitions that their rows have."""
        new = []
        for row in rows:
            topic = self.by_id(row.id)
            if topic is None:
                if (former := self.by_name(row.name)) is not None:
                    # The catalog has one topic of a name: the deletion of this one is read later.
                    await self.deletion.drop([former.id])
                new.append(row)
            elif row.partition_count > len(topic.partitions):
                await self._logs.free_all()
                await self._open_more(topic, row)
        if new:
            await self._logs.free_all()
            await self._open_topics(new)

    def see_nodes(self, epochs: Mapping[int, int]) -> None:
        """Note the starts of nodes, and so the leader epochs of what they lead.

        `epochs`: by node, the number of its last start. Read it before the leaders: else a node
        that has lost a partition and started again would get its new epoch for the partition.
        Raises NodeFenced.
        """
        placement = self.placement
        started = placement.see_epochs(epochs)
        if placement.moves and epochs.get(placement.own_id) != self._logs.leader_epoch:
            raise NodeFenced(f"node {placement.own_id} was taken over, or started a second time")
        # Without a call for each partition: there may be tens of thousands.
        for topic in self.all() if started else ():
            for index, one in enumerate(topic.partitions):
                if isinstance(one, Elsewhere):
                    since = started.get(one.node_id)
                    if since is not None and since.leader_epoch > one.leader_epoch:
                        topic.partitions[index] = since

    async def stop(self) -> None:
        """Return when the changes under way are done. What others change is not obeyed any more."""
        self._is_stopped = True
        await self.changes.ended()
