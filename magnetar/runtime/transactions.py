"""The transaction coordinator at work: decide, append, apply, durable, answer, and the work due.

Owns no rule: they are in `coordinator.transactions`. Between a decision and its application there
is no await, so nobody sees a state that is not in the log; before an answer everything that it
rests on is durable. What a decision leaves to be done is `settling`'s; EndTxn's answer waits for
it.

A restart is the replay of every shard, then the same question, what is due, for every id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from coordinator.decision import Decision
from coordinator.partitioning import partition_for
from coordinator.transactions import add_partitions, checks, complete, end_txn
from coordinator.transactions import init_producer_id as init
from coordinator.transactions.index import TransactionIndex
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.states import PREPARED
from coordinator.transactions.work import work_due
from magnetar.logging import get_logger
from magnetar.runtime.active_limit import ActiveLimit
from magnetar.runtime.completions import Completions
from magnetar.runtime.participants import LocalParticipants, Participants
from magnetar.runtime.producer_ids import ProducerIds
from magnetar.runtime.settling import SETTLE_TIMEOUT_MS, Settling
from magnetar.runtime.shard_log import ShardLog
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.runtime.transaction_expiry import TransactionExpiry
from magnetar.runtime.transaction_shards import RunningShard, encoded, replay_shards
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker

STATE_TOPIC = "__transaction_state"

_log = get_logger("transactions")

#: Of the state, and of a producer id that nobody has: used up where the record decided carries it.
Decide = Callable[[TransactionMetadata | None, int], Decision[TransactionMetadata]]


class Transactions:
    """The coordinator of every transactional id, and the source of producer ids."""

    def __init__(self, broker: Broker, participants: Participants | None = None) -> None:
        self._broker = broker
        self._settling = Settling(
            participants or LocalParticipants(broker), complete=self._complete, fail=broker.fail
        )
        self._shards: list[RunningShard] = []
        self._index = TransactionIndex()
        self._completions = Completions()
        self._producer_ids = ProducerIds(broker.catalog)
        self.clients = TransactionClients()  #: Who speaks for each id, for the log.
        self._active_limit = ActiveLimit(broker, self._index, self.clients)
        self._expiry = TransactionExpiry(
            broker,
            self.clients,
            forget=self._completions.forget,
            find=self.find,
            submit=lambda transactional_id, decide: self._submit(
                self._shard_of(transactional_id), transactional_id, decide
            )[0],
        )
        self.expire_due = self._expiry.expire_due
        self.heed_deadlines = self._expiry.release  #: Once every partition has been healed.
        #: EndTxn answers given before their markers were durable.
        self.late_settlements = 0

    async def start(self) -> None:
        """Replay every shard, settle what was decided before. Groups must have replayed.

        Nothing is PREPARE_* until `heed_deadlines`: healing, which leaves that alone, would pass
        over data whose add was lost, and a marker of a later epoch would end it.
        """
        if self._broker.topics.by_name(STATE_TOPIC) is None:
            return
        self._expiry.hold()
        self._open_shards()
        await self._settling.all_settled()
        self._settling.complete_all()

    async def stop(self) -> None:
        """End what is under way. What it leaves undone the next start finds due."""
        self._expiry.cancel()
        await self._settling.stop()

    def __iter__(self) -> Iterator[TransactionMetadata]:
        for shard in self._shards:
            yield from shard.state

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return what is known of `transactional_id`, None if nothing."""
        if not self._shards:
            return None
        return self._shard_of(transactional_id).state.get(transactional_id)

    def find_by_producer(self, producer_id: int) -> TransactionMetadata | None:
        """Return whose producer id it is, or was before its last rotation; None: nobody's."""
        transactional_id = self._index.transactional_id(producer_id)
        return None if transactional_id is None else self.find(transactional_id)

    @property
    def timed_out(self) -> int:
        """How many transactions their timeout has aborted."""
        return self._expiry.timed_out

    @property
    def open_count(self) -> int:
        """How many transactions are ONGOING."""
        return self._index.open_count

    @property
    def id_count(self) -> int:
        """How many transactional ids are known."""
        return sum(len(shard.state) for shard in self._shards)

    def oldest_open(self) -> TransactionMetadata | None:
        """Return the ONGOING transaction that began first, None where none is open."""
        return self._index.oldest_open()

    async def durable(self) -> None:
        """Return when everything known at the moment of the call is durable."""
        for log, end_offset in [(shard.log, shard.log.end_offset) for shard in self._shards]:
            await log.durable(end_offset)

    def adopt(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> tuple[ShardLog, int]:
        """Hold `partition`, whose data outlived its add; return the log and the end to await.

        Refuses as `coordinator.transactions.add_partitions`.
        """
        shard = self._shard_of(transactional_id)
        return self._add(
            shard, transactional_id, identity, frozenset({partition}), TRANSACTION_VERSION_2
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
            if txn.state in PREPARED:
                self._complete(txn.transactional_id)
                found[position] = self.find(txn.transactional_id) or txn
        await self.durable()
        return found

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Return the identity with which the producer may begin, every earlier one fenced.

        An open transaction is aborted and settled first, here: the client need not come back.
        CONCURRENT_TRANSACTIONS where that takes longer than the bound; else as
        `coordinator.transactions.init_producer_id`.
        """
        init.check_transactional_id(transactional_id)
        if transactional_id is None:
            return ProducerIdentity(self._producer_ids.take(), 0)
        init.check_timeout(timeout_ms, self._broker.config.transaction_max_timeout_ms)
        if not self._shards:
            self._open_shards()
        shard = self._shard_of(transactional_id)
        while True:
            await self._settling.settled(transactional_id)
            txn, end_offset = self._init(shard, transactional_id, timeout_ms, claimed)
            if txn.state not in PREPARED:
                await shard.log.durable(end_offset)
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
            self._known_shard_of(transactional_id),
            transactional_id,
            identity,
            partitions,
            transaction_version,
            may_begin=self._active_limit.may_begin(),
            may_wait=True,
        )
        await self._completions.durable(transactional_id, log)

    def hold(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Set[TopicPartition],
    ) -> tuple[ShardLog, int]:
        """Add what version 2's data is for; call in the step that appends it (op before data).

        Returns the log and the end to await with the data: one sync covers both. Refuses as
        `coordinator.transactions.add_partitions`, a stale epoch with INVALID_PRODUCER_EPOCH.
        """
        transactional_id = checks.check_named(transactional_id)
        shard = self._known_shard_of(transactional_id)
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
        self._completions.require(transactional_id, shard.log)
        return held

    def hold_offsets(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
    ) -> tuple[ShardLog, int]:
        """As `hold`, for transactional offsets of a group."""
        partition = self._offsets_partition(group_id)
        return self.hold(transactional_id, producer_id, producer_epoch, frozenset({partition}))

    async def add_offsets(
        self, transactional_id: str, identity: ProducerIdentity, group_id: str
    ) -> None:
        """As `add_partitions`, for transactional offsets of a group."""
        await self.add_partitions(
            transactional_id, identity, frozenset({self._offsets_partition(group_id)})
        )

    async def end(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        commit: bool,
        transaction_version: int = TRANSACTION_VERSION_1,
    ) -> ProducerIdentity:
        """Return when every read_committed reader and every offset fetch sees the outcome.

        The result is who may begin the next transaction, new from version 2 on. Where markers take
        longer than the bound it returns once the decision is durable.
        Refuses as `coordinator.transactions.end_txn`.
        """
        shard = self._known_shard_of(transactional_id)
        now_ms = self._broker.clock.now_ms()
        txn, end_offset = self._submit(
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
        )
        assert txn is not None, "a decision over an unknown id"
        is_settled = await self._settling.settled(transactional_id)
        await shard.log.durable(end_offset)
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
    ) -> tuple[ShardLog, int]:
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
    ) -> tuple[ShardLog, int]:
        """As `check_produce`, for transactional offsets of a group."""
        return self._held(
            transactional_id,
            (producer_id, producer_epoch),
            self._offsets_partition(group_id),
            is_abortable_known=version >= checks.TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
        )

    def _held(
        self,
        transactional_id: str | None,
        identity: tuple[int, int],
        partition: tuple[str, int],
        *,
        is_abortable_known: bool,
    ) -> tuple[ShardLog, int]:
        transactional_id = checks.check_named(transactional_id)
        txn = self.find(transactional_id)
        checks.check_holds(txn, *identity, partition, is_abortable_known=is_abortable_known)
        log = self._shard_of(transactional_id).log
        self._completions.require(transactional_id, log)
        return log, log.end_offset

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
            log = self._shard_of(transactional_id).log
            await log.durable(log.end_offset)
        return codes

    def _offsets_partition(self, group_id: str) -> TopicPartition:
        topic = self._broker.topics.ensure_internal(add_partitions.OFFSETS_TOPIC)
        return add_partitions.offsets_partition(group_id, len(topic.partitions))

    def _open_shards(self) -> None:
        """Replay the state topic, and set to work on what is due."""
        logs = self._broker.topics.ensure_internal(STATE_TOPIC).partitions
        self._shards = replay_shards(logs, self._index)
        for shard in self._shards:
            end_offset = shard.log.end_offset
            for txn in shard.state:
                self._producer_ids.stay_above(max(txn.producer_id, txn.next_producer_id))
                self._expiry.schedule(txn)
                if (work := work_due(txn)) is not None:
                    self._settling.begin(work, shard.log, end_offset, is_redrive=True)

    def _shard_of(self, transactional_id: str) -> RunningShard:
        return self._shards[partition_for(transactional_id, len(self._shards))]

    def _known_shard_of(self, transactional_id: str) -> RunningShard:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not self._shards:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id} is unknown"
            )
        return self._shard_of(transactional_id)

    def _init(
        self,
        shard: RunningShard,
        transactional_id: str,
        timeout_ms: int,
        claimed: ProducerIdentity | None,
    ) -> tuple[TransactionMetadata, int]:
        now_ms = self._broker.clock.now_ms()
        txn, end_offset = self._submit(
            shard,
            transactional_id,
            lambda txn, fresh_producer_id: init.init_producer_id(
                txn,
                transactional_id,
                claimed=claimed,
                timeout_ms=timeout_ms,
                fresh_producer_id=fresh_producer_id,
                now_ms=now_ms,
            ),
        )
        assert txn is not None, "InitProducerId decided nothing"
        return txn, end_offset

    def _add(
        self,
        shard: RunningShard,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Set[TopicPartition],
        transaction_version: int,
        *,
        may_begin: bool = True,
        may_wait: bool = False,
    ) -> tuple[ShardLog, int]:
        now_ms = self._broker.clock.now_ms()
        _, end_offset = self._submit(
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
            may_wait=may_wait,
        )
        return shard.log, end_offset

    def _submit(
        self,
        shard: RunningShard,
        transactional_id: str,
        decide: Decide,
        *,
        may_wait: bool = False,
    ) -> tuple[TransactionMetadata | None, int]:
        """Decide, append, apply, without an await; return the new state and what to await.

        A refusal raises out of `decide`: nothing has happened. What falls due is set to work.
        """
        self._complete(transactional_id)
        fresh_producer_id = self._producer_ids.peek()
        decision = decide(shard.state.get(transactional_id), fresh_producer_id)
        end_offset = shard.log.append(
            [encoded(record, shard.log) for record in decision.records],
            self._broker.clock.now_ms(),
            may_wait=may_wait,
        )
        for record in decision.records:
            shard.state.apply(record)
            if fresh_producer_id in (record.producer_id, record.next_producer_id):
                self._producer_ids.take()
            self._expiry.schedule(record)
        txn = shard.state.get(transactional_id)
        if decision.records and txn is not None and (work := work_due(txn)) is not None:
            self._settling.begin(work, shard.log, end_offset, is_redrive=False)
        return txn, end_offset

    def _complete(self, transactional_id: str) -> None:
        """Append COMPLETE_* if the id's markers are durable and it was not appended yet."""
        work = self._settling.take_done(transactional_id)
        if work is not None:
            now_ms = self._broker.clock.now_ms()
            is_awaited = work.transaction_version == TRANSACTION_VERSION_1
            _, end_offset = self._submit(
                self._shard_of(transactional_id),
                transactional_id,
                lambda txn, _: complete.complete(txn, work, now_ms),
                may_wait=not is_awaited,
            )
            if is_awaited:
                self._completions.note(transactional_id, end_offset)
