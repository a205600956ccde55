"""A shard is the fold of its records: wherever it is cut, replay and the work due end the same.

Random clients drive one shard's rules. After every record the log is replayed from its bytes and
must give the live state; then the crash: replay, do what is due, and see that each transaction has
one outcome, the one that was decided, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.decision import Decision
from coordinator.transactions.add_partitions import add_partitions
from coordinator.transactions.complete import complete
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.expire import Lifetimes, expire
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import (
    ProducerIdentity,
    Relation,
    TopicPartition,
    TransactionMetadata,
    relation,
)
from coordinator.transactions.records import decode_key, decode_value, encode_record
from coordinator.transactions.shard import Shard
from coordinator.transactions.states import PREDECESSORS, State
from coordinator.transactions.work import work_due
from wire.errors import KafkaError
from wire.records import SimpleRecord

Decide = Callable[[TransactionMetadata | None], Decision[TransactionMetadata]]

LIFETIMES = Lifetimes(transactional_id_ms=1_000, child_ms=1_000, vote_ms=1_000)


class History:
    """One shard driven by random requests, with the log that it writes."""

    def __init__(self) -> None:
        self.shard = Shard(7)
        self.log: list[SimpleRecord] = []
        self.now_ms = 0
        self.next_producer_id = 1000

    def submit(self, transactional_id: str, decide: Decide) -> None:
        before = self.shard.get(transactional_id)
        try:
            decision = decide(before)
        except KafkaError:
            assert self.shard.get(transactional_id) is before
            return
        for record in decision.records:
            assert before is None or before.state in PREDECESSORS[record.state]
            self.log.append(encode_record(record))
            self.shard.apply(record)

    def perform(self, step: tuple[str, str, int, int]) -> None:
        kind, transactional_id, epoch_lag, number = step
        txn = self.shard.get(transactional_id)
        identity = ProducerIdentity(-1, -1)
        if txn is not None:
            identity = ProducerIdentity(txn.producer_id, txn.producer_epoch - epoch_lag)
        self.now_ms += number
        fresh = self.next_producer_id
        self.next_producer_id += 1
        decides: dict[str, Decide] = {
            "init": lambda txn: init_producer_id(
                txn,
                transactional_id,
                claimed=identity if txn is not None and number % 2 else None,
                timeout_ms=50,
                fresh_producer_id=fresh,
                now_ms=self.now_ms,
            ),
            "add": lambda txn: add_partitions(
                txn,
                identity,
                {TopicPartition("a", number)},
                coordinator_partition=7,
                now_ms=self.now_ms,
                transaction_version=number,
            ),
            "commit": lambda txn: self.ended(txn, identity, fresh, commit=True, version=number),
            "abort": lambda txn: self.ended(txn, identity, fresh, commit=False, version=number),
            "expire": lambda txn: expire(txn, LIFETIMES, self.now_ms, fresh_producer_id=fresh),
            "age": self.aged,
            "work": self.completed,
        }
        self.submit(transactional_id, decides[kind])

    def ended(
        self,
        txn: TransactionMetadata | None,
        identity: ProducerIdentity,
        fresh_producer_id: int,
        *,
        commit: bool,
        version: int,
    ) -> Decision[TransactionMetadata]:
        return end_txn(
            txn,
            identity,
            commit=commit,
            transaction_version=version,
            coordinator_partition=7,
            fresh_producer_id=fresh_producer_id,
            now_ms=self.now_ms,
        )

    def aged(self, txn: TransactionMetadata | None) -> Decision[TransactionMetadata]:
        """Bring a young producer near the end of its epochs."""
        if txn is None or txn.state is not State.EMPTY or txn.producer_epoch > 10:
            return Decision()
        return Decision((replace(txn, producer_epoch=32763),))

    def completed(self, txn: TransactionMetadata | None) -> Decision[TransactionMetadata]:
        work = None if txn is None else work_due(txn)
        return Decision() if work is None else complete(txn, work, self.now_ms)


def replay(log: list[SimpleRecord]) -> Shard:
    shard = Shard(7)
    for record in log:
        assert record.key is not None
        transactional_id = decode_key(record.key)
        assert transactional_id is not None
        if record.value is None:
            shard.remove(transactional_id)
        else:
            shard.apply(decode_value(transactional_id, record.value))
    return shard


def states(shard: Shard) -> dict[str, TransactionMetadata]:
    return {txn.transactional_id: txn for txn in shard}


steps = st.lists(
    st.tuples(
        st.sampled_from(["init", "add", "add", "commit", "abort", "expire", "work", "work", "age"]),
        st.sampled_from(["tx-1", "tx-2"]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([0, 1, 1, 2, 60, 1_001]),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(steps)
def test_replay_is_the_live_state_after_every_step(plan: list[tuple[str, str, int, int]]) -> None:
    history = History()
    for step in plan:
        history.perform(step)
        assert states(replay(history.log)) == states(history.shard)


@settings(deadline=None)
@given(steps)
def test_a_crash_at_any_record_is_settled_by_replay_and_work_due(
    plan: list[tuple[str, str, int, int]],
) -> None:
    history = History()
    for step in plan:
        history.perform(step)
    for cut in range(len(history.log) + 1):
        shard = replay(history.log[:cut])
        decided = states(shard)
        for work in shard.work_due():
            for record in complete(shard.get(work.transactional_id), work, 10**9).records:
                shard.apply(record)
        assert shard.work_due() == []
        for transactional_id, txn in states(shard).items():
            before = decided[transactional_id]
            assert txn.txn_id == before.txn_id
            expected = {
                State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
                State.PREPARE_ABORT: State.COMPLETE_ABORT,
            }.get(before.state, before.state)
            assert txn.state is expected


@settings(deadline=None)
@given(steps)
def test_transactions_are_never_named_twice(plan: list[tuple[str, str, int, int]]) -> None:
    history = History()
    begun: list[object] = []
    for step in plan:
        before = {txn.transactional_id: txn.state for txn in history.shard}
        history.perform(step)
        for txn in history.shard:
            if txn.state is State.ONGOING and before.get(txn.transactional_id) is not State.ONGOING:
                begun.append(txn.txn_id)
    assert len(begun) == len(set(begun))


@settings(deadline=None)
@given(steps)
def test_no_client_is_given_the_epoch_of_the_fence_or_anothers_producer_id(
    plan: list[tuple[str, str, int, int]],
) -> None:
    history = History()
    owners: dict[int, str] = {}
    for step in plan:
        history.perform(step)
        for txn in history.shard:
            producer_id, producer_epoch = txn.successor
            assert producer_epoch <= 32766
            assert owners.setdefault(producer_id, txn.transactional_id) == txn.transactional_id
            assert relation(txn, txn.identity) is Relation.CURRENT
            if txn.successor != txn.identity:
                assert relation(txn, txn.successor) is Relation.NEXT
