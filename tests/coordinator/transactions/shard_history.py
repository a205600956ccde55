"""One shard driven by random requests, the log that it writes, and its replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.decision import Decision
from coordinator.transactions import joint
from coordinator.transactions.add_partitions import add_partitions
from coordinator.transactions.commit_plan import complete, work_due
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.epochs import Relation, relation
from coordinator.transactions.expire import Lifetimes, expire
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import (
    PREDECESSORS,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from coordinator.transactions.records import decode_key, decode_value, encode_record
from coordinator.transactions.shard import Shard
from wire.errors import KafkaError
from wire.records import SimpleRecord

Step = tuple[str, str, int, int]
Decide = Callable[[TransactionMetadata | None], Decision[TransactionMetadata, object]]

LIFETIMES = Lifetimes(transactional_id_ms=1_000, child_ms=1_000, vote_ms=1_000)


class History:
    """One shard driven by random requests, with the log that it writes, batch by batch."""

    def __init__(self) -> None:
        self.shard = Shard(7)
        self.log: list[list[SimpleRecord]] = []
        self.now_ms = 0
        self.next_producer_id = 1000

    def submit(self, transactional_id: str, decide: Decide) -> None:
        before = self.shard.get(transactional_id)
        try:
            decision = joint.joined(
                before,
                decide(before),
                self.shard,
                now_ms=self.now_ms,
                take_producer_id=self.take_producer_id,
            )
        except KafkaError:
            assert self.shard.get(transactional_id) is before
            return
        if decision.records:
            self.log.append([encode_record(record) for record in decision.records])
        for record in decision.records:
            known = self.shard.get(record.transactional_id)
            assert known is None or known.state in PREDECESSORS[record.state]
            self.shard.apply(record)

    def take_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def perform(self, step: Step) -> None:
        kind, transactional_id, epoch_lag, number = step
        txn = self.shard.get(transactional_id)
        identity = ProducerIdentity(-1, -1)
        if txn is not None:
            identity = ProducerIdentity(txn.producer_id, txn.producer_epoch - epoch_lag)
        self.now_ms += number
        fresh = self.take_producer_id()
        decides: dict[str, Decide] = {
            "init": lambda txn: init_producer_id(
                txn,
                transactional_id,
                parent_id=joint.parent_of(transactional_id, "~>"),
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
                transaction_version=1 + number % 2,
            ),
            "commit": lambda txn: self.ended(
                txn, identity, fresh, commit=True, version=1 + number % 2
            ),
            "abort": lambda txn: self.ended(
                txn, identity, fresh, commit=False, version=1 + number % 2
            ),
            "expire": lambda txn: expire(
                txn,
                LIFETIMES,
                self.now_ms,
                parent=self.shard.get(txn.parent_id) if txn and txn.parent_id else None,
                newest=self.shard.newest_child(txn.parent_id) if txn and txn.parent_id else None,
                fresh_producer_id=fresh,
            ),
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
    ) -> Decision[TransactionMetadata, object]:
        return end_txn(
            txn,
            identity,
            commit=commit,
            transaction_version=version,
            coordinator_partition=7,
            fresh_producer_id=fresh_producer_id,
            now_ms=self.now_ms,
        )

    def aged(self, txn: TransactionMetadata | None) -> Decision[TransactionMetadata, object]:
        """Bring a young producer near the end of its epochs."""
        if txn is None or txn.state is not State.EMPTY or txn.producer_epoch > 10:
            return Decision(answer=None)
        return Decision(records=(txn._replace(producer_epoch=32763),), answer=None)

    def completed(self, txn: TransactionMetadata | None) -> Decision[TransactionMetadata, object]:
        work = None if txn is None else work_due(txn, self.shard.get)
        return Decision(answer=None) if work is None else complete(txn, work, self.now_ms)


def replay(log: Sequence[Sequence[SimpleRecord]]) -> Shard:
    shard = Shard(7)
    for record in (record for batch in log for record in batch):
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


def check_identities(plan: Sequence[Step]) -> None:
    """Check that in no state after a step of `plan` a client is given the epoch of a fence, or a
    producer id that another has.
    """
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
