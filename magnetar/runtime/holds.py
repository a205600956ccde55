"""Which partitions a transaction holds, and whether their data may be appended (KIP-890).

A partition accepts transactional data only if the producer's transaction holds the partition: op
before data. Version 1 adds by AddPartitionsToTxn and AddOffsetsToTxn, and `check_produce` looks at
each batch. Version 2 adds with the data (`hold`). Both are called in the step that appends, and
return the log and the end to await with the data: one sync covers the add and the data.

The rules are in `coordinator.transactions.add_partitions`. `holds_elsewhere` asks the coordinator
of another node, and `holds_told` tells the leaders on other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from coordinator.decision import Urgency
from coordinator.transactions import add_partitions as adding
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    TopicPartition,
)
from logstore.partition.log import PartitionLog
from magnetar.clock import Clock
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.transaction_clients import ActiveLimit
from magnetar.runtime.transaction_store import TransactionShard, TransactionStore
from magnetar.storage.topic_names import CONSUMER_OFFSETS
from wire.error_code import ErrorCode
from wire.errors import KafkaError


class Holds:
    """The partitions that the transactions of this node's shards hold."""

    def __init__(
        self,
        store: TransactionStore,
        clock: Clock,
        active_limit: ActiveLimit,
        offsets_partition_of: Callable[[str], int],
        told: HoldsTold | None,
    ) -> None:
        """`offsets_partition_of`: the partition of `__consumer_offsets` that has a group. `told`:
        None for a node that is alone."""
        self._store = store
        self._clock = clock
        self._active_limit = active_limit
        self._offsets_partition_of = offsets_partition_of
        self._told = told

    # --- requests

    async def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Set[TopicPartition],
        *,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> None:
        """Return when the producer's transaction holds `partitions`, and data for them may come.

        That need not be durable yet: the acknowledgement of that data waits for it
        (`check_produce`). Data on other nodes waits as `HoldsTold` says. Refuses as
        `coordinator.transactions.add_partitions`.
        """
        shard = self._store.shard_of(transactional_id)
        log, end_offset = self._add(
            shard,
            transactional_id,
            identity,
            partitions,
            transaction_version,
            may_begin=self._active_limit.may_begin(),
            urgency=Urgency.RELAXED,
        )
        if self._told is not None:
            await self._told.added(shard, transactional_id, partitions, end_offset)
        await self._store.completions.until_data_may_follow(transactional_id, log)

    async def add_offsets(
        self, transactional_id: str, identity: ProducerIdentity, group_id: str
    ) -> None:
        """As `add_partitions`, for transactional offsets of a group."""
        partitions = frozenset({self._offsets_partition(group_id)})
        await self.add_partitions(transactional_id, identity, partitions)

    async def verify(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return, per partition, whether the producer's ongoing transaction holds it, durably."""
        txn = self._store.find(transactional_id)
        codes = adding.verified(txn, identity, partitions)
        # The answer rests on records that may not be durable yet.
        if txn is not None:
            shard = self._store.shard_of(transactional_id)
            await shard.durable(shard.log.log_end_offset)
        return codes

    # --- data: called in the step that appends it

    def hold(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Set[TopicPartition],
    ) -> tuple[PartitionLog, int]:
        """Add the partitions of version 2's data, in the step that appends it (op before data).

        Returns the log and the end to await with the data: one sync covers both. Refuses as
        `coordinator.transactions.add_partitions`, a stale epoch with INVALID_PRODUCER_EPOCH.
        """
        transactional_id = adding.check_named(transactional_id)
        identity = ProducerIdentity(producer_id, producer_epoch)
        held = self.add_for_data(transactional_id, identity, partitions)
        if transactional_id in self._store.completions.completed:
            self._store.completions.check_data_may_follow(transactional_id, held[0])
        return held

    def add_for_data(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Set[TopicPartition]
    ) -> tuple[PartitionLog, int]:
        """As `hold`, for data on another node, which is appended once the add is ordered."""
        try:
            return self._add(
                self._store.shard_of(transactional_id),
                transactional_id,
                identity,
                partitions,
                TRANSACTION_VERSION_2,
                may_begin=self._active_limit.may_begin(),
            )
        except KafkaError as refusal:
            raise adding.refusal_of_data(refusal) from None

    def hold_offsets(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
    ) -> tuple[PartitionLog, int]:
        """As `hold`, for transactional offsets of a group."""
        partition = self._offsets_partition(group_id)
        return self.hold(transactional_id, producer_id, producer_epoch, frozenset({partition}))

    def check_produce(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        is_abortable_known: bool,
    ) -> tuple[PartitionLog, int]:
        """Raise unless an ongoing transaction holds the partition of a transactional batch.

        Call it in the step that appends the batch. Returns the log and the end to await with the
        batch, so that the hold is durable too. Refuses as
        `coordinator.transactions.add_partitions.check_holds`, and with
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the request names no transactional id, as Kafka.
        """
        transactional_id = adding.check_named(transactional_id)
        shard = self._store.shard_of(transactional_id)
        adding.check_holds(
            shard.state.get(transactional_id),
            producer_id,
            producer_epoch,
            (topic, partition),
            is_abortable_known=is_abortable_known,
        )
        if transactional_id in self._store.completions.completed:
            self._store.completions.check_data_may_follow(transactional_id, shard.log)
        return shard.log, shard.log.state.end_offset

    def check_offsets(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        *,
        is_abortable_known: bool,
    ) -> tuple[PartitionLog, int]:
        """As `check_produce`, for transactional offsets of a group."""
        return self.check_produce(
            transactional_id,
            producer_id,
            producer_epoch,
            *self._offsets_partition(group_id),
            is_abortable_known=is_abortable_known,
        )

    def adopt(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> tuple[PartitionLog, int]:
        """Hold `partition`, whose data outlived its add; return the log and the end to await.

        Refuses as `coordinator.transactions.add_partitions`.
        """
        return self._add(
            self._store.shard_of(transactional_id),
            transactional_id,
            identity,
            frozenset({partition}),
            TRANSACTION_VERSION_2,
            is_adoption=True,
        )

    def _offsets_partition(self, group_id: str) -> TopicPartition:
        return TopicPartition(CONSUMER_OFFSETS, self._offsets_partition_of(group_id))

    def _add(
        self,
        shard: TransactionShard,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Set[TopicPartition],
        transaction_version: int,
        *,
        may_begin: bool = True,
        urgency: Urgency = Urgency.AWAITED,
        is_adoption: bool = False,
    ) -> tuple[PartitionLog, int]:
        now_ms = self._clock.now_ms()
        _, end_offset = self._store.submit(
            shard,
            transactional_id,
            lambda txn, fresh_producer_id: adding.add_partitions(
                txn,
                identity,
                partitions,
                coordinator_partition=shard.state.partition,
                now_ms=now_ms,
                transaction_version=transaction_version,
                may_begin=may_begin,
            ),
            now_ms,
            urgency=urgency,
            is_adoption=is_adoption,
        )
        return shard.log, end_offset
