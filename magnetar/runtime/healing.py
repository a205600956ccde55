"""Healing: no transaction stays open in a partition if nothing else would ever end it.

The sweep compares every open transaction of a partition with the coordinator's state, by the epoch
of the data. The rules, and why they are sound, are in `coordinator.transactions.healing`. A start
sweeps once, when all shards are replayed and their work due is done, and before any client is
served. Later sweeps follow every `transaction.healing.interval.ms`. Pending acks are open
transactions of their partition of `__consumer_offsets`: they are found there, and a marker resolves
them in the same step.

The sweep also lets partitions forget the producers whose transactional ids are forgotten. A job may
take a new id for each task, and their states would otherwise stay in each partition for a day.

A sweep judges twice: before and after the wait until the state that a verdict rests on is durable.
If that state has changed by then, the next sweep decides anew. Each remedy is logged and counted.

If another node coordinates a transaction, that node is asked, and the marker carries the epoch of
that coordinator. The epoch of this partition's leader counts other starts, and might fence the
coordinator. The answer may be late, but a verdict that is acted on stays true: an outcome never
changes, a fenced epoch stays fenced, and the data was there before its coordinator was asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from coordinator.transactions.healing import Remedy, Verdict, heal, marker_epoch
from coordinator.transactions.metadata import ProducerIdentity, TopicPartition, TransactionMetadata
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import OpenTransaction, TransactionMarker
from logstore.sync.group_commit import LedgerClosed
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.background import Background
from magnetar.runtime.holds_elsewhere import HoldsElsewhere
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.producers_elsewhere import NO_ANSWERS, Answers, ProducersElsewhere
from magnetar.runtime.transactions import Transactions
from magnetar.storage.topics import Topics
from wire.errors import KafkaError

_log = get_logger("transactions")

#: How many partitions, or open transactions, one turn of the event loop looks at: about 1 ms.
_SLICE = 256
#: Producers of one partition that one turn looks at: about half a millisecond.
_PRODUCERS = 4_096
#: How long the first sweep that asks other nodes waits for their start.
_PEERS_START_S = 1.0


class _Found(NamedTuple):
    """One open transaction of one partition, and what is known of it."""

    partition: TopicPartition
    log: PartitionLog
    open: OpenTransaction
    txn: TransactionMetadata | None
    coordinator_epoch: int | None
    """The epoch of the coordinator's shard, if another node has that shard."""
    verdict: Verdict

    @property
    def data(self) -> ProducerIdentity:
        return ProducerIdentity(self.open.producer_id, self.open.producer_epoch)


class Healing:
    """The sweep over all partitions of this broker."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        config: BrokerConfig,
        fail: Callable[[BaseException], None],
        transactions: Transactions,
        participants: LocalParticipants,
        elsewhere: ProducersElsewhere | None = None,
        holds_elsewhere: HoldsElsewhere | None = None,
    ) -> None:
        """`elsewhere`, `holds_elsewhere`: the other coordinators; None for a node that is alone."""
        self._elsewhere = elsewhere
        self._holds_elsewhere = holds_elsewhere
        self._topics = topics
        self._clock = clock
        self._config = config
        self._transactions = transactions
        self._participants = participants
        self._background = Background(fail)
        self._forgetting = Background(fail)
        #: How many open transactions of a partition were adopted, committed, aborted.
        self.counts: Counter[Remedy] = Counter()

    async def start(self) -> None:
        """Sweep once, then periodically. After groups and transactions have started.

        The first sweep leaves alone what other nodes coordinate: they may be starting too.
        """
        await self.sweep(asks_peers=False)
        if self._config.transaction_healing_interval_ms:
            self._background.start(self._sweep_periodically())
        self._forgetting.start(self._forget_silent_producers())

    async def stop(self) -> None:
        """Sweep no more. The next start finds what is left."""
        self._background.cancel()
        self._forgetting.cancel()

    async def sweep(self, *, asks_peers: bool = True) -> None:
        """Look at every open transaction of every partition once; return when all remedies are
        durable."""
        ended = self._transactions.store.take_forgotten()
        logs = ((topic.name, log) for topic in self._topics.all() for log in topic.local)
        for number, (name, log) in enumerate(logs, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            if ended:
                log.producers.forget_ended(ended, log.transactions.open_producer_ids())
            found = list(log.transactions.open_transactions())
            for start in range(0, len(found), _SLICE):
                some = found[start : start + _SLICE]
                answers = await self._answers(some, asks_peers)
                await self._heal(TopicPartition(name, log.partition), log, some, answers)
                await asyncio.sleep(0)

    async def _sweep_periodically(self) -> None:
        interval_s = self._config.transaction_healing_interval_ms / 1000
        if self._elsewhere is not None:
            # The first sweep has asked no other node: soon again, when they have started.
            await asyncio.sleep(min(interval_s, _PEERS_START_S))
            await self.sweep()
        while True:
            await asyncio.sleep(interval_s)
            await self.sweep()

    async def _forget_silent_producers(self) -> None:
        """Forget periodically the producers that were silent for `producer.id.expiration.ms`."""
        while True:
            await asyncio.sleep(self._config.producer_id_expiration_check_interval_ms / 1000)
            logs = (log for topic in self._topics.all() for log in topic.local)
            for number, log in enumerate(logs, 1):
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
                producer_ids = [*log.producers]
                for first in range(0, len(producer_ids), _PRODUCERS):
                    some = producer_ids[first : first + _PRODUCERS]
                    log.expire_producers(some, self._clock.steady_ms())
                    await asyncio.sleep(0)

    async def _answers(self, found: Sequence[OpenTransaction], asks_peers: bool) -> Answers:
        """Return what other nodes know of those producers that no coordinator here knows."""
        if self._elsewhere is None:
            return Answers({}, is_complete=True)
        known = self._transactions.find_by_producer
        strangers = [one.producer_id for one in found if known(one.producer_id) is None]
        if not strangers:
            return Answers({}, is_complete=True, asked=())
        return await self._elsewhere.find(strangers) if asks_peers else NO_ANSWERS

    async def _heal(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        found: list[OpenTransaction],
        answers: Answers,
    ) -> None:
        """Carry out the verdicts on some open transactions of one partition."""
        judged = self._judged(partition, log, found, answers)
        sick = [one for one in judged if one.verdict.remedy.is_act]
        if not sick:
            return
        await self._transactions.durable()
        still = self._judged(partition, log, [one.open for one in sick], answers)
        acted = []
        for before, now in zip(sick, still, strict=True):
            # `is`: the value that has just become durable, not an equal or a later one.
            if now.txn is before.txn and now.verdict == before.verdict and _is_open(now):
                if now.coordinator_epoch is not None and now.verdict.remedy is Remedy.ADOPT:
                    await self._adopt_elsewhere(now)
                    continue
                awaited = self._perform(now)
                if awaited is not None:
                    acted.append((now, awaited))
        for one, (its_log, end_offset) in acted:
            try:
                await its_log.durable(end_offset)
            except LedgerClosed:
                continue  # The topic was deleted meanwhile, so nothing hangs there any more.
            self.counts[one.verdict.remedy] += 1
            _report(one)

    def _judged(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        found: list[OpenTransaction],
        answers: Answers,
    ) -> list[_Found]:
        judged = []
        for one in found:
            txn = self._transactions.find_by_producer(one.producer_id)
            coordinator_epoch = None
            if txn is None and (there := answers.found.get(one.producer_id)) is not None:
                txn, coordinator_epoch = there
            data = ProducerIdentity(one.producer_id, one.producer_epoch)
            are_all_asked = answers.are_all_asked(one.producer_id)
            verdict = heal(txn, data, partition, are_all_asked=are_all_asked)
            judged.append(_Found(partition, log, one, txn, coordinator_epoch, verdict))
        return judged

    async def _adopt_elsewhere(self, found: _Found) -> None:
        """Ask the coordinator on another node to add the partition of data whose add was lost."""
        assert found.txn is not None and self._holds_elsewhere is not None
        try:
            await self._holds_elsewhere.adopt(
                found.txn.transactional_id, found.data, found.partition
            )
        except KafkaError as refusal:
            _log.warning("not healed", refusal=str(refusal), **_described(found))
            return
        self.counts[found.verdict.remedy] += 1
        _report(found)

    def _perform(self, found: _Found) -> tuple[PartitionLog, int] | None:
        """Carry out one verdict; return log and end offset to await, None where it was refused."""
        try:
            if found.verdict.remedy is Remedy.ADOPT:
                assert found.txn is not None
                return self._transactions.holds.adopt(
                    found.txn.transactional_id, found.data, found.partition
                )
            state = found.log.producers.get(found.data.producer_id)
            epoch, coordinator_epoch = marker_epoch(found.data), found.coordinator_epoch
            if coordinator_epoch is None:
                coordinator_epoch = self._own_epoch(found)
            if state is not None:
                epoch = max(epoch, state.producer_epoch)
                # In an adopted log a coordinator of another cluster may have used a higher epoch.
                coordinator_epoch = max(coordinator_epoch, state.coordinator_epoch)
            commit = found.verdict.remedy is Remedy.COMMIT
            marker = TransactionMarker(found.data.producer_id, epoch, coordinator_epoch, commit)
            return self._participants.append_marker(found.partition, marker, self._clock.now_ms())
        except KafkaError as refusal:
            _log.warning("not healed", refusal=str(refusal), **_described(found))
            return None

    def _own_epoch(self, found: _Found) -> int:
        """Return the coordinator epoch of a marker if no other node coordinates the transaction."""
        if found.txn is None or not self._topics.placement.moves:
            return found.log.leader_epoch
        # Where shards move, the partition's epoch may be above the coordinator's next one.
        return self._transactions.store.shard_of(found.txn.transactional_id).log.leader_epoch


def _is_open(found: _Found) -> bool:
    # A marker would go to the log that has the partition's name, which may be a new topic's by now.
    if found.log.is_gone:
        return False
    return found.log.transactions.open_transaction(found.data.producer_id) == found.open


def _report(found: _Found) -> None:
    _log.warning("transaction healed", **_described(found))


def _described(found: _Found) -> dict[str, object]:
    txn = found.txn
    return {
        "remedy": found.verdict.remedy.value,
        "reason": found.verdict.reason,
        "transactional_id": None if txn is None else txn.transactional_id,
        "txn_id": None if txn is None or txn.txn_id is None else str(txn.txn_id),
        "producer_id": found.data.producer_id,
        "producer_epoch": found.data.producer_epoch,
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "first_offset": found.open.first_offset,
    }
