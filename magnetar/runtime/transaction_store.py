"""All transactional ids, in the shards that coordinate them, and the one way in which they change.

`submit`: decide, append, apply, without an await in between, so nobody sees a state that is not in
the log. What a decision leaves to be done is set to work here: markers (`settling`), deadlines
(`transaction_expiry`), and COMPLETE_* once the markers are durable. Owns no rule: they are in
`coordinator.transactions`; and answers nobody: that is `transactions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from coordinator.decision import AnswerT, Decision, Urgency
from coordinator.transactions import complete, joint
from coordinator.transactions.fence import takes_producer_id
from coordinator.transactions.index import TransactionIndex
from coordinator.transactions.metadata import (
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_1,
    TransactionMetadata,
)
from coordinator.transactions.records import decode_record, encode_endable
from coordinator.transactions.shard import Shard
from coordinator.transactions.states import PREPARED, State
from coordinator.transactions.work import MarkerWork, work_due
from magnetar.runtime.completions import Completions
from magnetar.runtime.participants import LocalParticipants, Participants
from magnetar.runtime.producer_ids import ProducerIds
from magnetar.runtime.settling import Settling
from magnetar.runtime.shard import RecordFormat, RunningShard, latest_of_each_key
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.runtime.transaction_expiry import TransactionExpiry
from magnetar.storage.topic_names import TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError

if TYPE_CHECKING:
    from magnetar.broker import Broker

#: Of the state, and of a producer id that nobody has, where one may be needed
#: (`takes_producer_id`; -1: none is): used up where the record decided carries it.
Decide = Callable[[TransactionMetadata | None, int], Decision[TransactionMetadata, AnswerT]]

TransactionShard = RunningShard[Shard, TransactionMetadata]

_FORMAT: RecordFormat[TransactionMetadata] = RecordFormat(
    encode=lambda txn, _, batch_bytes_max: encode_endable(txn, batch_bytes_max),
    decode=decode_record,
    is_bounded=False,
)


class TransactionStore:
    """The shards of `__transaction_state`, and what follows from their records."""

    def __init__(self, broker: Broker, participants: Participants | None = None) -> None:
        self._broker = broker
        self.shards: list[TransactionShard] = []
        self._separator: str = broker.config.joint_transactions_separator
        #: Ids that a log holds elsewhere than where they would belong now: the separator was
        #: another one when they were first seen. They stay there until they expire.
        self._displaced: dict[str, int] = {}
        self.index = TransactionIndex()
        self.completions = Completions()
        self.producer_ids = ProducerIds(broker.catalog)
        self.clients = TransactionClients()  #: Who speaks for each id, for the log.
        self.settling = Settling(
            participants or LocalParticipants(broker),
            is_atomic=broker.logs.is_atomic,
            complete=self.complete,
            fail=self._fail,
        )
        self.expiry = TransactionExpiry(
            broker,
            self.clients,
            forget=self.completions.forget,
            find=self.find,
            parent_of=self.parent_of,
            submit=lambda transactional_id, decide, now_ms: self.submit(
                self.shard_of(transactional_id), transactional_id, decide, now_ms
            )[0],
        )

    def _fail(self, failure: BaseException) -> None:
        """A decision cannot be carried out: stop, before a part of what it appended is durable."""
        self._broker.fail(failure)
        self._broker.logs.fail(failure)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        for shard in self.shards:
            yield from shard.state

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return what is known of `transactional_id`, None if nothing."""
        if not self.shards:
            return None
        return self.shard_of(transactional_id).state.get(transactional_id)

    def open(self) -> None:
        """Replay the state topic, and set to work on what is due."""
        logs = self._broker.topics.ensure_internal(TRANSACTION_STATE).partitions
        self.shards = [RunningShard(log, Shard(log.partition, self.index), _FORMAT) for log in logs]
        clock = self._broker.clock
        for shard in self.shards:
            # Every record is the whole new value of its transactional id.
            shard.replay(latest_of_each_key)
        for shard in self.shards:
            end_offset = shard.log.log_end_offset
            for txn in shard.state:
                if self.shard_of(txn.transactional_id) is not shard:
                    self._displaced[txn.transactional_id] = shard.state.partition
                self.producer_ids.stay_above(max(txn.producer_id, txn.next_producer_id))
                self.expiry.schedule(txn, clock.now_ms())
                if (work := work_due(txn, shard.state.get)) is not None:
                    self.settling.begin(work, shard.log, end_offset, is_redrive=True)

    def shard_of(self, transactional_id: str) -> TransactionShard:
        """Return the shard that coordinates the id: of a child, its parent's."""
        if self._displaced and transactional_id in self._displaced:
            return self.shards[self._displaced[transactional_id]]
        partition_count = len(self.shards)
        return self.shards[
            joint.coordinator_partition(transactional_id, self._separator, partition_count)
        ]

    def parent_of(self, txn: TransactionMetadata | None) -> TransactionMetadata | None:
        """Return what is known of the parent of a child."""
        if txn is None or txn.parent_id is None:
            return None
        return self.shard_of(txn.transactional_id).state.get(txn.parent_id)

    def known_shard_of(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not self.shards:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id} is unknown"
            )
        return self.shard_of(transactional_id)

    def submit(
        self,
        shard: TransactionShard,
        transactional_id: str,
        decide: Decide[object],
        now_ms: int,
        *,
        urgency: Urgency = Urgency.AWAITED,
        is_adoption: bool = False,
    ) -> tuple[TransactionMetadata | None, int]:
        """Decide, append, apply, without an await; return the state decided and what to await.

        A refusal raises out of `decide`: nothing has happened. What falls due is set to work.
        `is_adoption`: as `joint.joined`.
        """
        if transactional_id in self.settling.done:
            self.complete(transactional_id)
        txn = shard.state.get(transactional_id)
        if txn is not None and txn.parent_id is not None:
            self.complete(txn.parent_id)  # which ends the child too
            txn = shard.state.get(transactional_id)
        fresh_producer_id = NO_PRODUCER_ID
        if takes_producer_id(txn):
            fresh_producer_id = self.producer_ids.peek()
        decision = decide(txn, fresh_producer_id)
        if not decision.records:
            return txn, shard.log.log_end_offset
        (decided,) = decision.records
        is_fresh = fresh_producer_id in (decided.producer_id, decided.next_producer_id)
        if is_fresh and fresh_producer_id != NO_PRODUCER_ID:
            self.producer_ids.take()
        records = joint.joined(
            txn,
            decision,
            shard.state,
            now_ms=now_ms,
            take_producer_id=self.producer_ids.take,
            is_adoption=is_adoption,
        ).records
        decided = records[0]
        if decided.state in PREPARED and (work := self._ended_at_once(records)) is not None:
            return decided, self._end(decided, work, shard, now_ms)
        end_offset = shard.append(records, now_ms, urgency)
        for record in records:
            self.expiry.schedule(record, now_ms)
        self._begin_all(records, shard, end_offset)
        return None if decided.state is State.DEAD else decided, end_offset

    def _ended_at_once(self, records: Sequence[TransactionMetadata]) -> MarkerWork | None:
        """Return the work of a decision, PREPARE_*, for which COMPLETE_* may stand, with its
        markers, where nothing is there after a crash without all of it; None where it may not.

        Version 2 need not have COMPLETE_* at once, and is PREPARE_* until it is durable: requests
        that race with its end are answered by that.
        """
        (decided, *others) = records
        if not self._broker.logs.is_all_or_nothing or others or decided.votes:
            return None
        if decided.client_transaction_version != TRANSACTION_VERSION_1:
            return None
        if self.settling.is_under_way(decided.transactional_id):
            return None
        return work_due(decided)

    def _end(
        self, decided: TransactionMetadata, work: MarkerWork, shard: TransactionShard, now_ms: int
    ) -> int:
        """Append and apply COMPLETE_* as the decision, and the markers; return what to await."""
        (completed,) = complete.complete(decided, work, now_ms).records
        end_offset = shard.append((completed,), now_ms, Urgency.ONE_RECORD)
        try:
            self.settling.begin(work, shard.log, end_offset, is_redrive=False, is_completed=True)
            self.expiry.schedule(completed, now_ms)
            self.completions.note(work.transactional_id, end_offset)
        except BaseException as failure:
            # Whatever it is: the record is never to be durable without all that it stands for.
            self._fail(failure)
            raise
        return end_offset

    def _begin_all(
        self, records: Sequence[TransactionMetadata], shard: TransactionShard, end_offset: int
    ) -> None:
        """Set to work on what a decision calls for. A parent's is done when its children's is."""
        (decided, *children) = records
        others = []
        for record in children:
            if record.state in PREPARED:
                self._begin(record, shard, end_offset)
                others.append(record.transactional_id)
        self._begin(decided, shard, end_offset, others)

    def _begin(
        self,
        txn: TransactionMetadata,
        shard: TransactionShard,
        end_offset: int,
        others: Sequence[str] = (),
    ) -> None:
        if txn.state is State.DEAD:
            self._displaced.pop(txn.transactional_id, None)
            return
        work = None
        if txn.state in PREPARED:
            work = work_due(txn, shard.state.get)
        elif others:
            work = MarkerWork(txn.transactional_id, *txn.identity, commit=False, partitions=())
        if work is not None:
            self.settling.begin(work, shard.log, end_offset, is_redrive=False, others=others)

    def complete(self, transactional_id: str) -> None:
        """Append COMPLETE_* if the id's markers are durable, or atomic with it, and it was not
        appended yet."""
        work = self.settling.take_done(transactional_id)
        if work is not None:
            now_ms = self._broker.clock.now_ms()
            is_awaited = work.is_completion_awaited
            urgency = Urgency.AWAITED if is_awaited else Urgency.RELAXED
            if self.settling.is_under_way(transactional_id):
                urgency = Urgency.ONE_RECORD
            _, end_offset = self.submit(
                self.shard_of(transactional_id),
                transactional_id,
                lambda txn, _: complete.complete(txn, work, now_ms),
                now_ms,
                urgency=urgency,
            )
            for each in work.with_votes if is_awaited else ():
                if each.transaction_version == TRANSACTION_VERSION_1:
                    self.completions.note(each.transactional_id, end_offset)
