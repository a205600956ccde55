"""The transaction coordinator's requests: decided, durable, answered.

The rules are in `coordinator.transactions`. An answer waits until everything that it rests on is
durable; EndTxn's answer waits until the outcome is visible. `transaction_store` makes a decision a
record, and `commit` does what follows from the record. `holds` has the requests that add partitions
to a transaction, and what their data needs.

A start replays every shard, and then does the work that is due of every id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from coordinator.decision import Decision
from coordinator.transactions import init_producer_id as init
from coordinator.transactions import joint
from coordinator.transactions.commit_plan import Storage
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    UNFINISHED,
    ProducerIdentity,
    State,
    TransactionMetadata,
)
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.commit import VISIBLE_TIMEOUT_MS
from magnetar.runtime.delayed_response import DelayedResponse
from magnetar.runtime.holds import Holds
from magnetar.runtime.holds_told import HoldsTold
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.participants import Participants
from magnetar.runtime.producer_ids import BlockSource
from magnetar.runtime.transaction_clients import ActiveLimit
from magnetar.runtime.transaction_store import TransactionShard, TransactionStore
from magnetar.storage.leaders import Partition
from magnetar.storage.topic_names import TRANSACTION_STATE
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
        """`offsets_partition_of`, `told`: as `Holds`. `storage`, `stop`, `elsewhere`: as
        `TransactionStore`."""
        self._topics = topics
        self._clock = clock
        self._config = config
        self.store = TransactionStore(
            config, clock, producer_ids, participants, storage, stop, elsewhere
        )
        self.clients = self.store.clients  #: The client that uses each id, for the log.
        active_limit = ActiveLimit(config, clock, self.store.index, self.clients)
        self.holds = Holds(self.store, clock, active_limit, offsets_partition_of, told)
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
