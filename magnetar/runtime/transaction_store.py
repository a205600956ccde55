"""All transactional ids, in the shards that coordinate them, and the one way in which they change.

`submit` decides, appends and applies, without an await in between. So no request sees a state that
is not in the log. The work of a decision begins in the same step: its markers (`commit`), its
deadlines (`transaction_expiry`), and later COMPLETE_* (`completions`). The rules are in
`coordinator.transactions`. The answers to clients are in `transactions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from coordinator.decision import Decision, Urgency
from coordinator.transactions import joint
from coordinator.transactions.commit_plan import MarkerWork, Plan, Storage, complete, planned
from coordinator.transactions.epochs import Decide, takes_producer_id
from coordinator.transactions.metadata import State, TopicPartition, TransactionMetadata
from coordinator.transactions.records import decode_record, encode_endable
from coordinator.transactions.shard import Shard, TransactionIndex
from logstore.partition.log import PartitionLog
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError
from magnetar.runtime.commit import Commits
from magnetar.runtime.completions import Completions
from magnetar.runtime.markers_elsewhere import MarkersElsewhere
from magnetar.runtime.participants import Participants
from magnetar.runtime.producer_ids import BlockSource, ProducerIds
from magnetar.runtime.shard import LOADING, RecordFormat, RunningShard
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.runtime.transaction_expiry import TransactionExpiry
from magnetar.storage.leaders import Elsewhere, Partition, shard_missing
from magnetar.storage.topic_names import TRANSACTION_STATE
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records.header import NO_PRODUCER_ID

Txn = TransactionMetadata
AnswerT = TypeVar("AnswerT")

#: How many forgotten producer ids wait for the next sweep of the partitions: those of some minutes.
#: Partitions keep any further ones for `producer.id.expiration.ms`.
_FORGOTTEN_MAX = 100_000

TransactionShard = RunningShard[Shard, Txn]

#: `encode_endable` bounds what begins, so that its end fits too: an end is never refused.
FORMAT: RecordFormat[Txn] = RecordFormat(encode_endable, decode_record, is_bounded=False)

#: The most deadlines that are set in one turn of the loop for a shard that has come: a millisecond.
_SCHEDULED_AT_ONCE = 256


class _Found(NamedTuple):
    """What a replayed shard means for the whole store."""

    strays: dict[str, int]
    """Ids whose names say another partition now, with that partition."""
    due: list[MarkerWork]
    producer_id_max: int


class TransactionStore:
    """The shards of `__transaction_state`, and what follows from their records."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        producer_ids: BlockSource,
        participants: Participants,
        storage: Storage,
        stop: Callable[[BaseException], None],
        elsewhere: MarkersElsewhere | None = None,
    ) -> None:
        """`storage`: what a crash leaves of the logs that take part. `stop` ends the broker:
        nothing becomes durable after that. `elsewhere`: the partitions of other nodes, if any."""
        self._clock = clock
        self._separator: str = config.joint_transactions_separator
        self._storage = storage
        self._stop = stop
        #: The shards of this node, in the order of their partitions.
        self.shards: list[TransactionShard] = []
        #: By partition; None where another node has the shard.
        self._by_partition: list[TransactionShard | None] = []
        #: Ids that are in another shard than their names say now, with its partition. They were
        #: first seen under another `joint.transactions.separator`, and stay where they are until
        #: they expire. So a change of that setting tears no family apart and forgets no outcome.
        self._kept_in: dict[str, int] = {}
        self._forgotten: deque[int] = deque(maxlen=_FORGOTTEN_MAX)
        self.index = TransactionIndex()
        self.producer_ids = ProducerIds(producer_ids)
        self.clients = TransactionClients()
        self._elsewhere = elsewhere
        self._is_led_here = None if elsewhere is None else elsewhere.is_led_here
        self._count_making_files = participants.count_making_files
        self.completions = Completions(self.complete)
        self.commits = Commits(
            participants, clock, self.completions, stop=stop, elsewhere=elsewhere
        )
        self.expiry = TransactionExpiry(
            config,
            clock,
            self.clients,
            find=self.find,
            parent_of=self.parent_of,
            newest_of=self.newest_of,
            submit=self._submit_unawaited,
        )

    def __iter__(self) -> Iterator[Txn]:
        for shard in self.shards:
            yield from shard.state

    @property
    def is_open(self) -> bool:
        """Whether the state topic is there: it is made with the first transactional id."""
        return bool(self._by_partition)

    async def start(self, partitions: Sequence[Partition]) -> None:
        """As `open`, before anything else asks for the shards.

        In a thread: the event loop hears signals meanwhile, and a node keeps its lease.
        """
        self._make(partitions)
        self._take_up(await LOADING.run(self._replay_all))

    def open(self, partitions: Sequence[Partition]) -> None:
        """Replay the partitions of the state topic that are led here, and begin what is due.

        Blocks. Raises ConfigError where the separator of joint transactions was changed so that
        another node would have to know an id of this one.
        """
        self._make(partitions)
        self._take_up(self._replay_all())

    def _make(self, partitions: Sequence[Partition]) -> None:
        self._by_partition = [
            None
            if isinstance(one, Elsewhere)
            else RunningShard(one, Shard(one.partition, self.index), FORMAT)
            for one in partitions
        ]
        self.shards = [shard for shard in self._by_partition if shard is not None]

    def _replay_all(self) -> list[_Found]:
        return [self._replay(shard) for shard in self.shards]

    def _take_up(self, found: Sequence[_Found]) -> None:
        for shard, each in zip(self.shards, found, strict=True):
            self._resume(shard, each)
            for txn in shard.state:
                # Read for each id: a long start must not move the deadlines of the last ones.
                self.expiry.schedule(txn, self._clock.now_ms())

    def _replay(self, shard: TransactionShard) -> _Found:
        """Replay a shard; return what follows. Blocks, and may run in a thread."""
        shard.replay()
        partition, count = shard.state.partition, len(self._by_partition)
        strays: dict[str, int] = {}
        producer_id_max = NO_PRODUCER_ID
        for txn in shard.state:
            home = joint.coordinator_partition(txn.transactional_id, self._separator, count)
            if home != partition:
                strays[txn.transactional_id] = home
            producer_id_max = max(producer_id_max, txn.producer_id, txn.next_producer_id)
        return _Found(strays, shard.state.work_due(), producer_id_max)

    def _resume(self, shard: TransactionShard, found: _Found) -> None:
        """Take up what a replayed shard has: ids, work that is due."""
        for transactional_id, home in found.strays.items():
            if self._by_partition[home] is None:
                raise _strayed(transactional_id)
            self._kept_in[transactional_id] = shard.state.partition
        self.producer_ids.stay_above(found.producer_id_max)
        end_offset = shard.log.log_end_offset
        for work in found.due:
            now_ms = self._clock.now_ms()
            self.commits.begin((work,), Plan.REDRIVE, shard.log, end_offset, now_ms)

    # --- shards that come and go

    async def load(self, log: PartitionLog) -> Callable[[], None]:
        """As `magnetar.storage.led_partitions.Coordinator`."""
        if not self._by_partition:
            # `open` replays this shard with the others, when one is first needed.
            return lambda: None
        # Without the index: no request may find an id by its producer id before the id has a shard.
        shard = RunningShard(log, Shard(log.partition), FORMAT)
        # All that takes long for each id is done in the thread, or after the step that begins.
        found = await LOADING.run(partial(self._replay, shard))
        return partial(self._begin, shard, found)

    def _begin(self, shard: TransactionShard, found: _Found) -> None:
        shard.state.join(self.index)
        self._put(shard.state.partition, shard)
        self._resume(shard, found)
        self._schedule(shard, iter([txn.transactional_id for txn in shard.state]))

    def _schedule(self, shard: TransactionShard, left: Iterator[str]) -> None:
        """Set the deadlines of a shard that has come, some in each turn of the event loop."""
        if self._by_partition[shard.state.partition] is not shard:
            return  # It has gone again.
        for transactional_id in (some := [*islice(left, _SCHEDULED_AT_ONCE)]):
            if (txn := shard.state.get(transactional_id)) is not None:
                self.expiry.schedule(txn, self._clock.now_ms())
        if some:
            asyncio.get_running_loop().call_soon(self._schedule, shard, left)

    def unload(self, partition: int) -> None:
        """As `magnetar.storage.led_partitions.Coordinator`."""
        shard = self._by_partition[partition] if self._by_partition else None
        if shard is None:
            return
        for transactional_id in tuple(self.completions.owed):
            if shard.state.get(transactional_id) is not None:
                # So that the next coordinator need not drive again what is visible already.
                self.complete(transactional_id)
        self._put(partition, None)
        shard.state.leave()
        for txn in shard.state:
            transactional_id = txn.transactional_id
            self._kept_in.pop(transactional_id, None)
            self.expiry.forget(transactional_id)
            self.commits.abandon(transactional_id)
            self.completions.forget(transactional_id)
            self.clients.forget(transactional_id)

    def _put(self, partition: int, shard: TransactionShard | None) -> None:
        self._by_partition[partition] = shard
        self.shards = [one for one in self._by_partition if one is not None]

    # --- where an id is

    def find(self, transactional_id: str) -> Txn | None:
        """Return what is known of `transactional_id`, None if nothing. Raises NOT_COORDINATOR."""
        if not (self._by_partition and transactional_id):
            return None
        return self.shard_of(transactional_id).state.get(transactional_id)

    def in_states(self, states: Set[State] | None) -> Iterator[list[Txn]]:
        """Yield at least all ids in these states (None: in any), those of a shard at a time.

        Open and voted ids are found without a look at idle ones.
        """
        found = None if states is None else self.index.in_states(states)
        if found is not None:
            yield found
            return
        for shard in self.shards:
            yield list(shard.state)

    def known(self, transactional_id: str) -> Txn | None:
        """Return what is known of an id that was found here, None if its shard has moved."""
        try:
            return self.find(transactional_id)
        except KafkaError:
            return None

    def shard_of(self, transactional_id: str) -> TransactionShard:
        """Return the shard that coordinates the id. A child has its parent's.

        Raises INVALID_REQUEST for an empty id, INVALID_PRODUCER_ID_MAPPING where there are no
        transactional ids at all, NOT_COORDINATOR where another node has the shard,
        COORDINATOR_LOAD_IN_PROGRESS where the shard is moving to this node.
        """
        shards = self._by_partition
        if not (shards and transactional_id):
            raise _known_to_none(transactional_id)
        if self._kept_in and transactional_id in self._kept_in:
            shard = shards[self._kept_in[transactional_id]]
        else:
            home = joint.coordinator_partition(transactional_id, self._separator, len(shards))
            shard = shards[home]
        if shard is None:
            raise shard_missing(transactional_id, is_coming=self._is_coming(transactional_id))
        return shard

    def _is_coming(self, transactional_id: str) -> bool:
        home = joint.coordinator_partition(
            transactional_id, self._separator, len(self._by_partition)
        )
        partition = TopicPartition(TRANSACTION_STATE, home)
        return self._elsewhere is not None and self._elsewhere.is_coming(partition)

    def parent_of(self, txn: Txn | None) -> Txn | None:
        """Return what is known of the parent of a child."""
        if txn is None or txn.parent_id is None:
            return None
        return self.shard_of(txn.transactional_id).state.get(txn.parent_id)

    def newest_of(self, txn: Txn | None) -> Txn | None:
        """Return the open or voted child that changed last among those of a child's parent."""
        if txn is None or txn.parent_id is None:
            return None
        return self.shard_of(txn.transactional_id).state.newest_child(txn.parent_id)

    # --- the one way in which an id changes

    def submit(
        self,
        shard: TransactionShard,
        transactional_id: str,
        decide: Decide[AnswerT],
        now_ms: int,
        *,
        urgency: Urgency = Urgency.AWAITED,
        is_adoption: bool = False,
    ) -> tuple[Decision[Txn, AnswerT], int]:
        """Decide, append, apply; return the decision and the end offset to await.

        A refusal raises out of `decide` or out of the append, and nothing has happened. If the
        transaction ends in one record (`Plan.ONE_RECORD`), the decision still says PREPARE_*.
        `is_adoption`: as `joint.joined`.
        """
        owed = self.completions.owed
        completed = self._completed(shard, transactional_id, now_ms) if owed else ()
        txn = completed[0] if completed else shard.state.get(transactional_id)
        decision = self._decide(shard, txn, decide, now_ms, is_adoption=is_adoption)
        if not decision.records:
            return decision, shard.log.log_end_offset
        is_ending = transactional_id in self.commits.under_way
        plan = planned(
            decision.records,
            self._storage,
            shard.state.get,
            is_ending=is_ending,
            is_led_here=self._is_led_here,
            count_making_files=self._count_making_files,
        )
        if plan.plan is Plan.ONE_RECORD:
            urgency = Urgency.ONE_RECORD
        end_offset = shard.append((*completed, *plan.records), now_ms, urgency)
        try:
            if completed:
                self.completions.note(owed.pop(transactional_id), end_offset)
            for record in plan.records:
                if record.state is State.DEAD:
                    self._forget(record)
                else:
                    self.expiry.schedule(record, now_ms)
            if plan.work:
                self.commits.begin(plan.work, plan.plan, shard.log, end_offset, now_ms)
        except BaseException as failure:
            # Any exception: a decision must not become durable without the work that it calls for.
            self._stop(failure)
            raise
        return decision, end_offset

    def _completed(
        self, shard: TransactionShard, transactional_id: str, now_ms: int
    ) -> tuple[Txn, ...]:
        """Return the COMPLETE_* that the id owes. It goes into one batch with what is decided next;
        if nothing is, it stays owed.

        One that changes other ids too, or that another id owes for this one, is appended here.
        """
        owed, state = self.completions.owed, shard.state
        txn = state.get(transactional_id)
        if txn is None or not (transactional_id in owed or txn.parent_id in owed):
            return ()
        if txn.parent_id is None and transactional_id not in state.families:
            work = owed[transactional_id]
            if not work.votes and (completed := complete(txn, work, now_ms).records):
                return completed
        self.complete(transactional_id)
        if txn.parent_id is not None:
            self.complete(txn.parent_id)  # The parent's COMPLETE_* ends the child too.
        return ()

    def _decide(
        self,
        shard: TransactionShard,
        txn: Txn | None,
        decide: Decide[AnswerT],
        now_ms: int,
        *,
        is_adoption: bool,
    ) -> Decision[Txn, AnswerT]:
        """Ask the rule, with the id as it is once all owed COMPLETE_* are in the log."""
        fresh_producer_id = NO_PRODUCER_ID
        if takes_producer_id(txn):
            fresh_producer_id = self.producer_ids.peek()
        decision = decide(txn, fresh_producer_id=fresh_producer_id)
        if not decision.records:
            return decision
        (decided,) = decision.records
        is_used = fresh_producer_id in (decided.producer_id, decided.next_producer_id)
        if is_used and fresh_producer_id != NO_PRODUCER_ID:
            self.producer_ids.take()
        if decided.parent_id is None and decided.transactional_id not in shard.state.families:
            return decision
        return joint.joined(
            txn,
            decision,
            shard.state,
            now_ms=now_ms,
            take_producer_id=self.producer_ids.take,
            is_adoption=is_adoption,
        )

    def complete(self, transactional_id: str) -> None:
        """Append the COMPLETE_* of the id that is owed, if it is still owed."""
        work = self.completions.owed.pop(transactional_id, None)
        if work is None:
            return
        now_ms = self._clock.now_ms()
        _, end_offset = self.submit(
            self.shard_of(transactional_id),
            transactional_id,
            lambda txn, fresh_producer_id: complete(txn, work, now_ms),
            now_ms,
            urgency=work.completion,
        )
        self.completions.note(work, end_offset)

    def _submit_unawaited(
        self, transactional_id: str, decide: Decide[None], now_ms: int
    ) -> Decision[Txn, None]:
        """As `submit`, for a decision that no client waits for."""
        return self.submit(self.shard_of(transactional_id), transactional_id, decide, now_ms)[0]

    def take_forgotten(self) -> set[int]:
        """Return the producer ids of transactional ids that were forgotten since the last call.

        Nothing can be written under them any more.
        """
        taken = {*self._forgotten} - {NO_PRODUCER_ID}
        self._forgotten.clear()
        return taken

    def _forget(self, dead: Txn) -> None:
        self._forgotten += (dead.producer_id, dead.previous_producer_id)
        transactional_id = dead.transactional_id
        self._kept_in.pop(transactional_id, None)
        self.completions.forget(transactional_id)
        self.clients.forget(transactional_id)


def _known_to_none(transactional_id: str) -> KafkaError:
    """Return the refusal of an id that no shard of any node can have."""
    if not transactional_id:
        return KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id} is unknown")


def _strayed(transactional_id: str) -> ConfigError:
    """Return why a node does not start: FindCoordinator would send clients to another node."""
    return ConfigError(
        f"joint.transactions.separator was changed, and another node would coordinate the"
        f" transactional id {transactional_id} now. Set it back, or start without --workers until"
        " such ids have expired (transactional.id.expiration.ms)."
    )
