"""The transaction coordinator's requests: decided, durable, answered.

Owns no rule: they are in `coordinator.transactions`. Before an answer everything that it rests on
is durable. How a decision becomes a record, and what follows from it, is `transaction_store`'s;
EndTxn's answer waits for the markers.

A restart is the replay of every shard, then the same question, what is due, for every id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from coordinator.decision import Urgency
from coordinator.transactions import add_partitions, checks, end_txn, joint
from coordinator.transactions import init_producer_id as init
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.states import PREPARED, UNSETTLED, State
from logstore.partition.log import PartitionLog
from magnetar.logging import get_logger
from magnetar.runtime.active_limit import ActiveLimit
from magnetar.runtime.participants import Participants
from magnetar.runtime.settling import SETTLE_TIMEOUT_MS
from magnetar.runtime.transaction_store import TransactionShard, TransactionStore
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker

_log = get_logger("transactions")


class Transactions:
    """The coordinator of every transactional id, and the source of producer ids."""

    def __init__(self, broker: Broker, participants: Participants | None = None) -> None:
        self._broker = broker
        self.store = TransactionStore(broker, participants)
        self.clients = self.store.clients  #: Who speaks for each id, for the log.
        self._active_limit = ActiveLimit(broker, self.store.index, self.clients)
        self.find = self.store.find
        self.expire_due = self.store.expiry.expire_due
        self.heed_deadlines = self.store.expiry.release  #: Once every partition has been healed.
        #: EndTxn answers given before their markers were durable.
        self.late_settlements = 0

    async def start(self) -> None:
        """Replay every shard, settle what was decided before. Groups must have replayed.

        Nothing is PREPARE_* until `heed_deadlines`: healing, which leaves that alone, would pass
        over data whose add was lost, and a marker of a later epoch would end it.
        """
        if self._broker.topics.by_name(TRANSACTION_STATE) is None:
            return
        self.store.expiry.hold()
        self.store.open()
        await self.store.settling.all_settled()
        self.store.settling.complete_all()

    async def stop(self) -> None:
        """End what is under way. What it leaves undone the next start finds due."""
        self.store.expiry.cancel()
        await self.store.settling.stop()

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self.store)

    def find_by_producer(self, producer_id: int) -> TransactionMetadata | None:
        """Return whose producer id it is, or was before its last rotation; None: nobody's."""
        transactional_id = self.store.index.transactional_id(producer_id)
        return None if transactional_id is None else self.find(transactional_id)

    @property
    def timed_out(self) -> int:
        """How many transactions their timeout has aborted."""
        return self.store.expiry.timed_out

    @property
    def open_count(self) -> int:
        """How many transactions are ONGOING."""
        return self.store.index.open_count

    @property
    def id_count(self) -> int:
        """How many transactional ids are known."""
        return sum(len(shard.state) for shard in self.store.shards)

    def oldest_open(self) -> TransactionMetadata | None:
        """Return the ONGOING transaction that began first, None where none is open."""
        return self.store.index.oldest_open()

    def children(self, transactional_id: str) -> list[str]:
        """Return its children that are ONGOING or VOTED, in order."""
        if not self.store.shards:
            return []
        return sorted(self.store.shard_of(transactional_id).state.children(transactional_id))

    async def durable(self) -> None:
        """Return when everything known at the moment of the call is durable."""
        ends = [(shard, shard.log.log_end_offset) for shard in self.store.shards]
        for shard, end_offset in ends:
            await shard.durable(end_offset)

    def adopt(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> tuple[PartitionLog, int]:
        """Hold `partition`, whose data outlived its add; return the log and the end to await.

        Refuses as `coordinator.transactions.add_partitions`.
        """
        shard = self.store.shard_of(transactional_id)
        return self._add(
            shard,
            transactional_id,
            identity,
            frozenset({partition}),
            TRANSACTION_VERSION_2,
            is_adoption=True,
        )

    async def describe(
        self, transactional_ids: Iterable[str] | None = None
    ) -> list[TransactionMetadata]:
        """Return what is known of these ids (None: of all), once it is durable.

        Unknown ids are left out. What has ended is shown as ended, also where its COMPLETE_* was
        still waiting for company.
        """
        found = list(self)
        if transactional_ids is not None:
            found = [txn for each in transactional_ids if (txn := self.find(each)) is not None]
        for position, txn in enumerate(found):
            if txn.state in UNSETTLED:
                self.store.complete(txn.transactional_id)
                if txn.parent_id is not None:
                    self.store.complete(txn.parent_id)
                found[position] = self.find(txn.transactional_id) or txn
        await self.durable()
        return found

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return the identity with which the producer may begin, every earlier one fenced.

        An open transaction is aborted and settled first, here: the client need not come back.
        CONCURRENT_TRANSACTIONS where that takes longer than the bound, and for a child whose vote
        is sealed; else as `coordinator.transactions.init_producer_id`.
        """
        init.check_transactional_id(transactional_id)
        if transactional_id is None:
            return ProducerIdentity(self.store.producer_ids.take(), 0)
        init.check_timeout(timeout_ms, self._broker.config.transaction_max_timeout_ms)
        if not self.store.shards:
            self.store.open()
        shard = self.store.shard_of(transactional_id)
        while True:
            await self.store.settling.settled(transactional_id)
            known = shard.state.get(transactional_id)
            if known is not None and known.state is State.VOTED and known.parent_id is not None:
                await self.store.settling.settled(known.parent_id)
            txn, end_offset = self._init(shard, transactional_id, timeout_ms, claimed)
            if txn.state not in PREPARED:
                await shard.durable(end_offset)
                return txn.identity

    async def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Set[TopicPartition],
        *,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> None:
        """Return when the producer's transaction holds `partitions`, and data for them may come.

        Not when that is durable: an acknowledgement of that data waits for it (`check_produce`).
        Refuses as `coordinator.transactions.add_partitions`.
        """
        log, _ = self._add(
            self.store.known_shard_of(transactional_id),
            transactional_id,
            identity,
            partitions,
            transaction_version,
            may_begin=self._active_limit.may_begin(),
            urgency=Urgency.RELAXED,
        )
        await self.store.completions.durable(transactional_id, log)

    def hold(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Set[TopicPartition],
    ) -> tuple[PartitionLog, int]:
        """Add what version 2's data is for; call in the step that appends it (op before data).

        Returns the log and the end to await with the data: one sync covers both. Refuses as
        `coordinator.transactions.add_partitions`, a stale epoch with INVALID_PRODUCER_EPOCH.
        """
        transactional_id = checks.check_named(transactional_id)
        shard = self.store.known_shard_of(transactional_id)
        try:
            held = self._add(
                shard,
                transactional_id,
                ProducerIdentity(producer_id, producer_epoch),
                partitions,
                TRANSACTION_VERSION_2,
                may_begin=self._active_limit.may_begin(),
            )
        except KafkaError as refusal:
            raise checks.refusal_of_data(refusal) from None
        self.store.completions.require(transactional_id, shard.log)
        return held

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

    async def add_offsets(
        self, transactional_id: str, identity: ProducerIdentity, group_id: str
    ) -> None:
        """As `add_partitions`, for transactional offsets of a group."""
        partitions = frozenset({self._offsets_partition(group_id)})
        await self.add_partitions(transactional_id, identity, partitions)

    async def end(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        commit: bool,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> ProducerIdentity:
        """Return when every read_committed reader and every offset fetch sees the outcome; for the
        commit of a child once its vote is durable.

        The result is who may begin the next transaction, new from version 2 on. Where markers take
        longer than the bound it returns once the decision is durable.
        Refuses as `coordinator.transactions.end_txn`.
        """
        shard = self.store.known_shard_of(transactional_id)
        now_ms = self._broker.clock.now_ms()
        txn, end_offset = self.store.submit(
            shard,
            transactional_id,
            lambda txn, fresh_producer_id: end_txn.end_txn(
                txn,
                identity,
                commit=commit,
                transaction_version=transaction_version,
                coordinator_partition=shard.state.partition,
                fresh_producer_id=fresh_producer_id,
                now_ms=now_ms,
            ),
            now_ms,
        )
        assert txn is not None, "a decision over an unknown id"
        await shard.durable(end_offset)
        is_settled = await self.store.settling.settled(transactional_id)
        joint.refuse_late_vote(txn, commit=commit)
        if not is_settled:
            self.late_settlements += 1
            _log.warning(
                "answered before the markers",
                transactional_id=transactional_id,
                waited_ms=SETTLE_TIMEOUT_MS,
            )
        return txn.successor

    def check_produce(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        version: int,
    ) -> tuple[PartitionLog, int]:
        """Refuse a transactional batch that no ongoing transaction holds. Call where it appends.

        Returns the log and the end to await with the batch, which make the hold durable.
        Codes: `coordinator.transactions.checks`; TRANSACTIONAL_ID_AUTHORIZATION_FAILED where the
        request names no transactional id, as Kafka answers.
        """
        return self._held(
            transactional_id,
            (producer_id, producer_epoch),
            (topic, partition),
            is_abortable_known=version >= checks.PRODUCE_ABORTABLE_SINCE,
        )

    def check_offsets(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        *,
        version: int,
    ) -> tuple[PartitionLog, int]:
        """As `check_produce`, for transactional offsets of a group."""
        return self._held(
            transactional_id,
            (producer_id, producer_epoch),
            (CONSUMER_OFFSETS, self._broker.groups.partition_of(group_id)),
            is_abortable_known=version >= checks.TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
        )

    def _held(
        self,
        transactional_id: str | None,
        identity: tuple[int, int],
        partition: tuple[str, int],
        *,
        is_abortable_known: bool,
    ) -> tuple[PartitionLog, int]:
        transactional_id = checks.check_named(transactional_id)
        store = self.store
        shard = store.shard_of(transactional_id) if store.shards else None
        txn = None if shard is None else shard.state.get(transactional_id)
        checks.check_holds(txn, *identity, partition, is_abortable_known=is_abortable_known)
        assert shard is not None, "what is known is in a shard"
        log = shard.log
        store.completions.require(transactional_id, log)
        return log, log.log_end_offset

    async def verify_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return, per partition, whether the producer's ongoing transaction holds it, durably."""
        txn = self.find(transactional_id)
        codes = dict.fromkeys(partitions, ErrorCode.NONE)
        for partition in codes:
            try:
                checks.check_holds(txn, *identity, partition, is_abortable_known=True)
            except KafkaError as refusal:
                codes[partition] = refusal.code
        if txn is not None:
            shard = self.store.shard_of(transactional_id)
            await shard.durable(shard.log.log_end_offset)
        return codes

    def _offsets_partition(self, group_id: str) -> TopicPartition:
        return TopicPartition(CONSUMER_OFFSETS, self._broker.groups.partition_of(group_id))

    def _init(
        self,
        shard: TransactionShard,
        transactional_id: str,
        timeout_ms: int,
        claimed: ProducerIdentity | None,
    ) -> tuple[TransactionMetadata, int]:
        now_ms = self._broker.clock.now_ms()
        parent_id = None
        if shard.state.get(transactional_id) is None:
            separator = self._broker.config.joint_transactions_separator
            parent_id = joint.parent_of(transactional_id, separator)
        txn, end_offset = self.store.submit(
            shard,
            transactional_id,
            lambda txn, fresh_producer_id: init.init_producer_id(
                txn,
                transactional_id,
                parent_id=parent_id,
                claimed=claimed,
                timeout_ms=timeout_ms,
                fresh_producer_id=fresh_producer_id,
                now_ms=now_ms,
            ),
            now_ms,
        )
        assert txn is not None, "InitProducerId decided nothing"
        return txn, end_offset

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
        now_ms = self._broker.clock.now_ms()
        _, end_offset = self.store.submit(
            shard,
            transactional_id,
            lambda txn, _: add_partitions.add_partitions(
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
