"""The transaction coordinator's requests: decided, durable, answered.

The rules are in `coordinator.transactions`. An answer waits until everything that it rests on is
durable; EndTxn's answer waits until the outcome is visible. `transaction_store` makes a decision a
record, and `commit` does what follows from the record.

A start replays every shard, and then does the work that is due of every id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Protocol

from coordinator.decision import Decision, Urgency
from coordinator.transactions import add_partitions as adding
from coordinator.transactions import init_producer_id as init
from coordinator.transactions import joint
from coordinator.transactions.commit_plan import Storage
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    UNFINISHED,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from logstore.partition.log import PartitionLog
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.commit import VISIBLE_TIMEOUT_MS
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.participants import Participants
from magnetar.runtime.producer_ids import BlockSource
from magnetar.runtime.transaction_clients import ActiveLimit
from magnetar.runtime.transaction_store import TransactionShard, TransactionStore
from magnetar.storage.leaders import Partition
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message

_log = get_logger("transactions")


class PartitionsOfTopic(Protocol):
    """A topic, by its logs."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """Its partitions, in order."""
        ...


class InternalTopics(Protocol):
    """Where the coordinators' topics are found."""

    def by_name(self, name: str) -> PartitionsOfTopic | None:
        """Return the topic, None if it was never needed."""

    def ensure_internal(self, name: str) -> PartitionsOfTopic:
        """Return the topic, made if it is missing. Blocks."""
        ...


class Transactions:
    """The coordinator of every transactional id, and the source of producer ids."""

    def __init__(
        self,
        topics: InternalTopics,
        producer_ids: BlockSource,
        clock: Clock,
        config: BrokerConfig,
        *,
        offsets_partition_of: Callable[[str], int],
        participants: Participants,
        storage: Storage,
        stop: Callable[[BaseException], None],
        elsewhere: MarkersElsewhere | None = None,
        told: HoldsTold | None = None,
    ) -> None:
        """`offsets_partition_of`: the partition of `__consumer_offsets` that has a group.
        `storage`, `stop`, `elsewhere`: as `TransactionStore`. `told`: None for a node that is
        alone."""
        self._topics = topics
        self._clock = clock
        self._config = config
        self._offsets_partition_of = offsets_partition_of
        self._told = told
        self.store = TransactionStore(
            config, clock, producer_ids, participants, storage, stop, elsewhere
        )
        self.clients = self.store.clients  #: The client that uses each id, for the log.
        self._active_limit = ActiveLimit(config, clock, self.store.index, self.clients)
        self.find = self.store.find
        self.expire_due = self.store.expiry.expire_due
        self.heed_deadlines = self.store.expiry.resume  #: Once every partition has been healed.
        #: EndTxn answers given before their markers were durable.
        self.late_settlements = 0

    async def start(self) -> None:
        """Replay every shard, and carry out what was decided before. Groups must have replayed.

        No id is in PREPARE_* between the return and `heed_deadlines`. Healing leaves ids in
        PREPARE_* alone. It would pass over data whose add was lost, and a marker of a later epoch
        would end that data.
        """
        topic = self._topics.by_name(TRANSACTION_STATE)
        if topic is None:
            return
        self.store.expiry.pause()
        await self.store.start(topic.partitions)
        await self.store.commits.all_own_visible()
        self.store.completions.complete_all()

    async def stop(self) -> None:
        """End what is under way. The next start does what is left."""
        self.store.expiry.stop()
        await self.store.commits.stop()
        self.store.completions.stop()

    # --- questions

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self.store)

    def find_by_producer(self, producer_id: int) -> TransactionMetadata | None:
        """Return the id that has this producer id, or had it before its last rotation; or None."""
        transactional_id = self.store.index.transactional_id(producer_id)
        return None if transactional_id is None else self.find(transactional_id)

    @property
    def timed_out(self) -> int:
        """How many transactions were aborted by their timeout."""
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
        if not (self.store.is_open and transactional_id):
            return []
        return sorted(self.store.shard_of(transactional_id).state.children(transactional_id))

    async def durable(self) -> None:
        """Return when everything known at the moment of the call is durable."""
        ends = [(shard, shard.log.log_end_offset) for shard in self.store.shards]
        for shard, end_offset in ends:
            await shard.durable(end_offset)

    async def describe(self, transactional_ids: Iterable[str]) -> list[TransactionMetadata]:
        """Return what is known of these ids once it is durable; unknown ids are left out.

        A transaction that has ended is shown as ended, even if its COMPLETE_* was still owed.
        """
        found = [txn for each in transactional_ids if (txn := self.find(each)) is not None]
        found = [*self.up_to_date(found)]
        await self.durable()
        return found

    def up_to_date(self, found: Iterable[TransactionMetadata]) -> Iterator[TransactionMetadata]:
        """Yield what is known of these ids now, with no COMPLETE_* owed. Await `durable` then."""
        for txn in found:
            if txn.state not in UNFINISHED:
                yield txn
                continue
            self.store.complete(txn.transactional_id)
            if txn.parent_id is not None:
                self.store.complete(txn.parent_id)
            yield self.store.known(txn.transactional_id) or txn

    # --- requests

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return the identity with which the producer may begin. Every earlier one is fenced.

        An open transaction is aborted first, and its abort is visible on return, so the client need
        not ask again. Raises CONCURRENT_TRANSACTIONS if that takes longer than the bound, and for a
        child whose vote is sealed; else as `coordinator.transactions.init_producer_id`.
        """
        init.check_transactional_id(transactional_id)
        if transactional_id is None:
            return ProducerIdentity(self.store.producer_ids.take(), 0)
        init.check_timeout(timeout_ms, self._config.transaction_max_timeout_ms)
        if not self.store.is_open:
            self.store.open(self._topics.ensure_internal(TRANSACTION_STATE).partitions)
        commits = self.store.commits
        # Once more after an abort: the identity is given when the markers of that are durable.
        while True:
            await commits.visible(transactional_id)
            # In each round: the shard may have gone to another node meanwhile.
            shard = self.store.shard_of(transactional_id)
            known = shard.state.get(transactional_id)
            if known is not None and known.state is State.VOTED and known.parent_id is not None:
                await commits.visible(known.parent_id)
            decision, end_offset = self._init(shard, transactional_id, timeout_ms, claimed)
            if decision.answer is not None:
                await shard.durable(end_offset)
                return decision.answer

    def _init(
        self,
        shard: TransactionShard,
        transactional_id: str,
        timeout_ms: int,
        claimed: ProducerIdentity | None,
    ) -> tuple[Decision[TransactionMetadata, ProducerIdentity | None], int]:
        now_ms = self._clock.now_ms()
        parent_id = None
        # The parent is fixed when an id is first seen: no later separator changes a family.
        if shard.state.get(transactional_id) is None:
            separator = self._config.joint_transactions_separator
            parent_id = joint.parent_of(transactional_id, separator)
        return self.store.submit(
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
        shard = self.store.shard_of(transactional_id)
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
        await self.store.completions.until_data_may_follow(transactional_id, log)

    async def add_offsets(
        self, transactional_id: str, identity: ProducerIdentity, group_id: str
    ) -> None:
        """As `add_partitions`, for transactional offsets of a group."""
        partitions = frozenset({self._offsets_partition(group_id)})
        await self.add_partitions(transactional_id, identity, partitions)

    def end(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        respond: Callable[[ProducerIdentity], Message],
        *,
        now_ms: int,
        commit: bool,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> Message | DelayedResponse:
        """Return the response, delayed until every read_committed reader and every offset fetch
        sees the outcome. The commit of a child is answered once its vote is durable.

        `respond` makes the response from the identity for the next transaction, which is a new one
        under version 2. `now_ms`: the wall clock's time in this step, not of the request's arrival,
        since a transaction must not end before it began. If markers take longer than the bound, the
        response is given then, since the decision is durable. Refuses as
        `coordinator.transactions.end_txn` and `Commits.when_visible`.
        """
        shard = self.store.shard_of(transactional_id)
        decide = partial(
            end_txn,
            identity=identity,
            commit=commit,
            transaction_version=transaction_version,
            coordinator_partition=shard.state.partition,
            now_ms=now_ms,
        )
        decision, end_offset = self.store.submit(shard, transactional_id, decide, now_ms)
        refusal = None
        if commit and decision.records and decision.records[0].parent_id is not None:
            refusal = joint.refusal_of_late_vote(decision.records[0])
        return self.store.commits.when_visible(
            transactional_id,
            shard.log,
            end_offset,
            refusal or respond(decision.answer),
            on_late=self._report_late,
        )

    def _report_late(self, transactional_id: str) -> None:
        self.late_settlements += 1
        _log.warning(
            "EndTxn answered before its markers are durable",
            transactional_id=transactional_id,
            waited_ms=VISIBLE_TIMEOUT_MS,
        )

    async def verify_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return, per partition, whether the producer's ongoing transaction holds it, durably."""
        txn = self.find(transactional_id)
        codes = adding.verified(txn, identity, partitions)
        # The answer rests on records that may not be durable yet.
        if txn is not None:
            shard = self.store.shard_of(transactional_id)
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
        if transactional_id in self.store.completions.completed:
            self.store.completions.check_data_may_follow(transactional_id, held[0])
        return held

    def add_for_data(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Set[TopicPartition]
    ) -> tuple[PartitionLog, int]:
        """As `hold`, for data on another node, which is appended once the add is ordered."""
        try:
            return self._add(
                self.store.shard_of(transactional_id),
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
        shard = self.store.shard_of(transactional_id)
        adding.check_holds(
            shard.state.get(transactional_id),
            producer_id,
            producer_epoch,
            (topic, partition),
            is_abortable_known=is_abortable_known,
        )
        if transactional_id in self.store.completions.completed:
            self.store.completions.check_data_may_follow(transactional_id, shard.log)
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
            self.store.shard_of(transactional_id),
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
        _, end_offset = self.store.submit(
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
