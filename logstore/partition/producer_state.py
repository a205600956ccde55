"""What a partition remembers of its producers: epoch, last sequence, the last five batches.

Owns the rules of idempotence at the partition: which batch is a duplicate, which sequence follows,
which epoch is a zombie's. A fold over batch headers and markers in offset order, so a replay of the
log rebuilds it. Not here: open transactions (`transaction_buffer`), the coordinator's view.
Source: KIP-98, KIP-360, KIP-890; behaviour of Apache Kafka 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from struct import Struct
from typing import NamedTuple
from weakref import ref

from logstore.partition.transaction_buffer import TransactionMarker
from wire.error_code import ErrorCode
from wire.errors import KafkaError, RefusedByLog
from wire.records import BatchHeader, next_sequence
from wire.records.header import NO_SEQUENCE

#: A client has at most five requests in flight, so a retry is of one of the last five batches.
BATCHES_REMEMBERED = 5
NO_OFFSET = -1

#: base sequence, last sequence, base offset, last offset, max timestamp (ms)
PACKED_BATCH = Struct(">iiqqq")
#: What one batch takes in `ProducerState.batches`.
PACKED_BATCH_BYTES = PACKED_BATCH.size
_BATCHES_SIZE_MAX = BATCHES_REMEMBERED * PACKED_BATCH_BYTES


class RememberedBatch(NamedTuple):
    """One of a producer's last batches, as a retry of it is answered."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def pack_batch(batch: RememberedBatch) -> bytes:
    """Return the batch in the form in which `ProducerState.batches` holds it."""
    return PACKED_BATCH.pack(*batch)


class ProducerState:
    """One producer at one partition. About 400 bytes, however much it writes.

    `batches` packs the last five batches, the newest last; a new epoch empties it. A state that
    stems from a marker alone has no batches: its next sequence is 0.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_marker_offset",
        "last_sequence",
        "last_timestamp",
        "producer_epoch",
        "seen_ms",
    )

    def __init__(
        self,
        producer_epoch: int,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        last_sequence: int = NO_SEQUENCE,
        seen_ms: int = -1,
        batches: bytes = b"",
        last_marker_offset: int = NO_OFFSET,
    ) -> None:
        self.producer_epoch = producer_epoch
        #: The epoch of the coordinator whose marker was the last here, -1: none.
        self.coordinator_epoch = coordinator_epoch
        #: The max timestamp of the last batch, or the time of the last marker.
        self.last_timestamp = last_timestamp
        self.last_sequence = last_sequence
        #: When this broker last heard of the producer, by its steady clock: a client's timestamps
        #: may be of any year, and the wall clock may be set. Not part of the fold: a replay takes
        #: its own time, and `Producers.resume` moves that of a snapshot to the new run's clock.
        self.seen_ms = seen_ms
        self.batches = batches
        #: Where the producer's last marker is, -1: nowhere known. Compaction keeps it there.
        self.last_marker_offset = last_marker_offset

    def copied(self) -> ProducerState:
        """Return a state that does not change with this one."""
        return ProducerState(
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.last_sequence,
            self.seen_ms,
            self.batches,
            self.last_marker_offset,
        )

    def remembered(self) -> Iterator[RememberedBatch]:
        """Yield the last batches, oldest first."""
        return map(RememberedBatch._make, PACKED_BATCH.iter_unpack(self.batches))

    def last_batch(self) -> RememberedBatch | None:
        """Return the newest of the remembered batches."""
        if not self.batches:
            return None
        return RememberedBatch._make(PACKED_BATCH.unpack(self.batches[-PACKED_BATCH.size :]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerState):
            return NotImplemented
        return self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # mutable: not to be a key

    def _key(self) -> tuple[int, int, int, int, bytes, int]:
        return (
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.last_sequence,
            self.batches,
            self.last_marker_offset,
        )

    def __repr__(self) -> str:
        return (
            f"ProducerState(producer_epoch={self.producer_epoch}, "
            f"coordinator_epoch={self.coordinator_epoch}, last_timestamp={self.last_timestamp}, "
            f"last_sequence={self.last_sequence}, batches={list(self.remembered())}, "
            f"last_marker_offset={self.last_marker_offset})"
        )


def _zombie(producer_id: int, producer_epoch: int, state: ProducerState) -> KafkaError:
    return RefusedByLog(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id}: epoch {producer_epoch}, have {state.producer_epoch}",
    )


class Producers(dict[int, ProducerState]):
    """Every producer id that a partition remembers, with its state."""

    __slots__ = ("_views", "has_forgotten")

    def __init__(self) -> None:
        super().__init__()
        #: Whether producers have expired that a replay of the log would find again.
        self.has_forgotten = False
        #: The views in use: each has to know a state before the state changes.
        self._views: list[ref[ProducersView]] = []

    def view(self) -> ProducersView:
        """Return all producers as they are now."""
        view = ProducersView(self)
        self._views.append(ref(view, self._views.remove))
        return view

    def _keep(self, producer_id: int, state: ProducerState) -> None:
        """Leave a state that is about to change, or to go, to the views that have it."""
        for reference in self._views:
            if (view := reference()) is not None:
                view.keep(producer_id, state)

    def duplicate_of(self, header: BatchHeader) -> RememberedBatch | None:
        """Return the remembered batch that `header` repeats (epoch and sequences), or None."""
        state = self.get(header.producer_id)
        if state is None or state.producer_epoch != header.producer_epoch or not state.batches:
            return None
        base_sequence, last_sequence = header.base_sequence, header.last_sequence
        for batch in PACKED_BATCH.iter_unpack(state.batches):
            if batch[0] == base_sequence and batch[1] == last_sequence:
                return RememberedBatch._make(batch)
        return None

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Decide whether an idempotent batch may be appended: None, or the batch it duplicates.

        Raises INVALID_PRODUCER_EPOCH for a zombie's epoch; OUT_OF_ORDER_SEQUENCE_NUMBER for a gap,
        for a repetition too old to be remembered, and for a new epoch that does not begin at 0.
        A producer that is not remembered (expired, or its records are deleted) may begin anywhere.
        A producer known by a marker alone begins at 0, as in Kafka. `check_beginning` is stricter.
        """
        state = self.get(header.producer_id)
        if state is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == state.producer_epoch:
            # The common case first: what follows the last batch cannot repeat one.
            if sequence == next_sequence(state.last_sequence, 1):
                return None
            duplicate = self.duplicate_of(header)
            if duplicate is not None:
                return duplicate
            raise RefusedByLog(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {sequence} after {state.last_sequence}",
            )
        self.check_epoch(header.producer_id, epoch)
        if sequence != 0:
            raise RefusedByLog(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: epoch {epoch} begins with sequence {sequence}",
            )
        return None

    def check_beginning(self, header: BatchHeader) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER if a producer that is not remembered does not begin
        at 0.

        For data of transaction version 2, where every transaction begins at 0: the batches before
        this one are still on their way, and one of them must be the first.
        """
        if header.base_sequence != 0 and header.producer_id not in self:
            raise RefusedByLog(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: begins with sequence {header.base_sequence}",
            )

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH if a newer epoch of that producer has written here."""
        state = self.get(producer_id)
        if state is not None and producer_epoch < state.producer_epoch:
            raise _zombie(producer_id, producer_epoch, state)

    def check_marker(self, marker: TransactionMarker, *, is_open: bool) -> None:
        """Raise if a marker comes from a zombie: INVALID_PRODUCER_EPOCH or
        TRANSACTION_COORDINATOR_FENCED.

        Up to transaction version 1 a marker has its data's epoch or, where it fences, a later one.
        From 2 on it is always later than its data; the same epoch is a repetition of a marker that
        is here already, and harmless while nothing is open.
        """
        producer_id, producer_epoch, coordinator_epoch, _, transaction_version = marker
        state = self.get(producer_id)
        if state is None:
            return
        if producer_epoch < state.producer_epoch:
            raise _zombie(producer_id, producer_epoch, state)
        if transaction_version >= 2 and is_open and producer_epoch == state.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id}: marker's epoch {producer_epoch} is that of open data",
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch}, have {state.coordinator_epoch}",
            )

    def on_batch(self, header: BatchHeader, steady_ms: int) -> None:
        """Account for an idempotent data batch at the log's end, live or replayed."""
        state = self.get(header.producer_id)
        if state is None:
            state = self[header.producer_id] = ProducerState(header.producer_epoch)
        elif self._views:
            self._keep(header.producer_id, state)
        batches = state.batches
        if state.producer_epoch != header.producer_epoch:
            # Sequences begin anew with an epoch: a retry of the old one is a zombie's.
            state.producer_epoch = header.producer_epoch
            batches = b""
        elif len(batches) == _BATCHES_SIZE_MAX:
            batches = batches[PACKED_BATCH.size :]
        base_offset, last_sequence = header.base_offset, header.last_sequence
        state.batches = batches + PACKED_BATCH.pack(
            header.base_sequence,
            last_sequence,
            base_offset,
            base_offset + header.last_offset_delta,
            header.max_timestamp,
        )
        state.last_sequence = last_sequence
        state.last_timestamp = header.max_timestamp
        state.seen_ms = steady_ms

    def on_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        timestamp: int,
        steady_ms: int,
        offset: int = NO_OFFSET,
    ) -> None:
        """Account for a marker at the log's end. A later epoch forgets the old one's batches."""
        state = self.get(producer_id)
        if state is None:
            state = self[producer_id] = ProducerState(producer_epoch)
        elif self._views:
            self._keep(producer_id, state)
        if state.producer_epoch != producer_epoch:
            state.producer_epoch = producer_epoch
            state.last_sequence = NO_SEQUENCE
            state.batches = b""
        state.coordinator_epoch = coordinator_epoch
        state.last_marker_offset = offset
        state.last_timestamp = timestamp
        state.seen_ms = steady_ms

    def resume(self, steady_ms: int) -> None:
        """Go on, after a start at `steady_ms`, from the silences that a snapshot has.

        The producer last heard of counts as heard of now, and the others keep their distance to it.
        So a producer falls silent only while the broker runs: no clock tells how long a stopped
        broker was down, since the wall clock may have been set meanwhile.
        """
        passed_ms = steady_ms - max((state.seen_ms for state in self.values()), default=0)
        for state in self.values():
            state.seen_ms += passed_ms

    def expire(
        self, producer_ids: Iterable[int], silent_since_ms: int, keep: Set[int]
    ) -> list[int]:
        """Forget those of `producer_ids` that are here and were last heard of at `silent_since_ms`
        or before. Returns their ids.

        Producers in `keep` stay: they have open transactions.
        """
        # A transaction's producer stays, however old: its marker must meet the epoch of its data.
        expired = [
            producer_id
            for producer_id in producer_ids
            if (state := self.get(producer_id)) is not None
            and state.seen_ms <= silent_since_ms
            and producer_id not in keep
        ]
        self._forget(expired)
        return expired

    def forget_ended(self, producer_ids: Set[int], keep: Set[int]) -> None:
        """Forget those of `producer_ids` that are here: producers that can write no more.

        A coordinator that has forgotten a transactional id refuses all data of its producer ids,
        so their epochs and sequences serve nothing. `keep`: as `expire`.
        """
        self._forget([each for each in self.keys() & producer_ids if each not in keep])

    def _forget(self, producer_ids: Collection[int]) -> None:
        for producer_id in producer_ids:
            self._keep(producer_id, self.pop(producer_id))
        self.has_forgotten |= bool(producer_ids)


class ProducersView:
    """All producers of a partition as they were when the view was made.

    What they do afterwards copies a state once, before it changes. The view ends with its last
    reference.
    """

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._ids = [*producers]
        #: The states that have changed since, as they were.
        self._before: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """Yield each producer id with its state. Producers may write on in between."""
        producers, before = self._producers, self._before
        for producer_id in self._ids:
            yield producer_id, before.get(producer_id) or producers[producer_id]

    def keep(self, producer_id: int, state: ProducerState) -> None:
        """Note a state that is about to change, or to go."""
        if producer_id not in self._before:
            self._before[producer_id] = state.copied()
