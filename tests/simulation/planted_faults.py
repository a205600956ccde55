"""Faults that are planted in the broker, to prove that histories find them.

Each replaces one function of the product. `docs/testing.md` has the table: within how many seeds
each is found, and what the simulation lacks for those that it does not find.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from coordinator.transactions.epochs import Relation


class Fault(NamedTuple):
    """A function of the product, and what stands in its place."""

    name: str
    where: str
    """module:attribute, or module:Class.method"""
    what: str
    """The fault in a sentence, for the table."""
    make: Callable[[Any], Any]
    """The real function -> the faulty one."""


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def _round_uncounted(real: Any) -> Any:
    def begin_round(self: Any) -> None:
        generation = self._generation
        real(self)
        self._generation = generation

    return begin_round


async def _nothing_async(*_: object, **__: object) -> None:
    """Do nothing, and wait for nothing."""


def _always(answer: object) -> Callable[[Any], Any]:
    return lambda _: lambda *_, **__: answer


def _ignored(_: Any) -> Any:
    return _nothing


def _ignored_async(_: Any) -> Any:
    return _nothing_async


def _visible_at_once(real: Any) -> Any:
    def append(self: Any, *args: Any, **options: Any) -> Any:
        appended = real(self, *args, **options)
        self.reader.advance(self.state.end_offset)
        return appended

    return append


def _without_last_batches(real: Any) -> Any:
    def opening(self: Any, *args: Any, **options: Any) -> Any:
        yield from real(self, *args, **options)
        for state in self.producers.values():
            state.batches = b""

    return opening


def _all_but_last_partition(real: Any) -> Any:
    def append(self: Any, work: Any, *args: Any) -> Any:
        if len(work.partitions) > 1:
            work = work._replace(partitions=sorted(work.partitions)[:-1])
        return real(self, work, *args)

    return append


def _stable_is_durable(_: Any) -> Any:
    def stabilize(self: Any, high_watermark: int) -> int:
        self.last_stable_offset = high_watermark
        return high_watermark

    return stabilize


def _all_served(_: Any) -> Any:
    def take_served(self: Any) -> list[Any]:
        served, self.waiters = [waiter for _, waiter in self.waiters], []
        return served

    return take_served


def _first_stays(real: Any) -> Any:
    def put(self: Any, key: bytes, offset: int) -> None:
        if self.get(key) < 0:
            real(self, key, offset)

    return put


def _newest_of_key_forgotten(real: Any) -> Any:
    return lambda self, key: real(self, key) + 1


def _with_short_retention(real: Any) -> Any:
    def due(segments: Any, config: Any, **options: Any) -> Any:
        short = replace(config, retention_bytes=4_000, cleanup_policy=frozenset({"delete"}))
        return real(segments, short, **options)

    return due


def _swapped(real: Any) -> Any:
    def take_ready(self: Any) -> Any:
        exchanges = self._exchanges
        if len(exchanges) > 1 and exchanges[1].answer is not None:
            exchanges[0], exchanges[1] = exchanges[1], exchanges[0]
        return real(self)

    return take_ready


def _head_lost(real: Any) -> Any:
    def received(self: Any, count: int) -> Any:
        frames = real(self, count)
        self._head = b""
        return frames

    return received


def _one_further(real: Any) -> Any:
    def appended_before(original: Any, *args: Any) -> Any:
        return real(original._replace(base_offset=original.base_offset + 1), *args)

    return appended_before


def _catalog_forgets(real: Any) -> Any:
    def keep(self: Any) -> None:
        if self._stored.committed is None or self._disk.random.random() < 0.5:
            real(self)

    return keep


def _earliest_of_each_key(_: Any) -> Any:
    def latest(entries: Any) -> Any:
        first: dict[bytes, Any] = {}
        for entry in entries:
            key = getattr(entry[1], "key", None)
            if key is not None and entry[1].value is not None:
                first.setdefault(key, entry)
        return first.values()

    return latest


def _freed_by_nobody(real: Any) -> Any:
    def compare(group: Any, member: Any, target: Any) -> Any:
        owners, group.owners = group.owners, {}
        try:
            return real(group, member, target)
        finally:
            group.owners = owners

    return compare


def _without_pending(real: Any) -> Any:
    def replay(self: Any, *args: Any) -> None:
        kind = type(self.state)
        apply_pending = kind.apply_pending
        kind.apply_pending = _nothing
        try:
            real(self, *args)
        finally:
            kind.apply_pending = apply_pending

    return replay


def _unsynced(real: Any) -> Any:
    return lambda self, name, sync: real(self, name, sync=False)


def _without_directories(real: Any) -> Any:
    return lambda files, barriers, *args: real(
        files, [each._replace(directories=()) for each in barriers], *args
    )


def _with_later(**changes: Any) -> Callable[[Any], Any]:
    """Return what `real` returns, with these fields of a marker changed before."""
    return lambda real: (
        lambda self, partition, marker, now_ms: real(
            self, partition, marker._replace(**changes), now_ms
        )
    )


def _one_marker_back(real: Any) -> Any:
    def work_due(txn: Any, *args: Any) -> Any:
        return None

    return work_due


_COMMIT = "logstore.sync.group_commit:GroupCommit"
_LOG = "logstore.partition.log:PartitionLog"
_PRODUCERS = "logstore.partition.producer_state:Producers"
_PARTICIPANTS = "magnetar.runtime.participants:LocalParticipants"

FAULTS = (
    # Durability.
    Fault(
        "sync-skipped",
        f"{_COMMIT}._perform",
        "A sync is reported as done, and nothing is synced.",
        lambda _: lambda self, syncs: self._executor.call_soon(lambda: self._performed(None)),
    ),
    Fault(
        "durable-not-awaited",
        "logstore.sync.group_commit:CommittedLedger.when_durable",
        "A batch is acknowledged when it is appended.",
        _always(False),
    ),
    Fault(
        "waiters-served-early",
        "logstore.sync.group_commit:CommittedLedger.take_served",
        "A sync answers also those whose bytes it does not cover.",
        _all_served,
    ),
    Fault(
        "visible-at-once",
        f"{_LOG}._append",
        "The high watermark moves with the append, not with the sync.",
        _visible_at_once,
    ),
    Fault(
        "journal-not-replayed",
        "logstore.directory.log_directory:replay_journal",
        "A start does not look at the journal.",
        _always(0),
    ),
    Fault(
        "journal-round-not-counted",
        "logstore.sync.journal:Journal.begin_round",
        "The next round of the journal has the number of the last.",
        _round_uncounted,
    ),
    Fault(
        "directories-not-synced",
        "logstore.sync.group_commit:sync_barriers",
        "New names are not synced.",
        _without_directories,
    ),
    Fault(
        "files-not-flushed",
        "logstore.sync.group_commit:GroupCommit._sync",
        "The thread begins a new round of the journal, and has synced no file.",
        lambda _: lambda self, *_, **__: self._journal and self._journal.restart(),
    ),
    Fault(
        "tail-trusted",
        "logstore.segments.batch_recovery:_is_valid",
        "Recovery takes a torn batch for a whole one.",
        _always(True),
    ),
    Fault(
        "tail-not-cut",
        "logstore.segments.batch_recovery:Recovery._recover",
        "Recovery trusts the sizes of the files.",
        lambda real: lambda self, segments, result: _measured(self, segments, result),
    ),
    Fault(
        "catalog-not-synced",
        "tests.simulation.world.storage:SimulatedCatalog._keep",
        "Half of the catalog's commits do not survive a crash.",
        _catalog_forgets,
    ),
    # Idempotence.
    Fault(
        "sequence-not-checked",
        f"{_PRODUCERS}.check",
        "A batch that was sent again is appended again.",
        _ignored,
    ),
    Fault(
        "last-batches-forgotten",
        f"{_LOG}.opening",
        "A restart forgets the last five batches of each producer.",
        _without_last_batches,
    ),
    Fault(
        "duplicate-misplaced",
        "logstore.partition.log:appended_before",
        "A duplicate is answered with the offset after the original's.",
        _one_further,
    ),
    Fault(
        "producer-ids-again",
        "magnetar.storage.catalog:Catalog.allocate_producer_ids",
        "Every start gives out the same producer ids.",
        _always(0),
    ),
    # Transactions.
    Fault(
        "epoch-not-checked",
        "coordinator.transactions.end_txn:relation",
        "EndTxn takes every producer for the current one.",
        _always(Relation.CURRENT),
    ),
    Fault(
        "fence-removed",
        "coordinator.transactions.init_producer_id:prepare_bumped",
        "InitProducerId aborts the open transaction at the epoch of its producer.",
        lambda real: (
            lambda txn, state, now_ms, **options: real(txn, state, now_ms, **options)._replace(
                producer_epoch=txn.producer_epoch, last_producer_epoch=-1
            )
        ),
    ),
    Fault(
        "hold-not-checked",
        "coordinator.transactions.add_partitions:check_holds",
        "Data needs no transaction that holds its partition (version 1).",
        _ignored,
    ),
    Fault(
        "zombie-data-accepted",
        f"{_PRODUCERS}.check_epoch",
        "A partition takes data of an earlier epoch.",
        _ignored,
    ),
    Fault(
        "marker-lost",
        f"{_PARTICIPANTS}.append",
        "The last partition of a transaction gets no marker.",
        _all_but_last_partition,
    ),
    Fault(
        "abort-commits",
        f"{_PARTICIPANTS}.append_marker",
        "Every marker says commit.",
        _with_later(commit=True),
    ),
    Fault(
        "commit-not-awaited",
        "magnetar.runtime.commit:Commits.visible",
        "EndTxn is answered before its markers are durable.",
        lambda _: lambda self, _id: _true(),
    ),
    Fault(
        "decision-not-awaited",
        "magnetar.runtime.shard:RunningShard.durable",
        "A coordinator answers before its decision is durable.",
        _ignored_async,
    ),
    Fault(
        "redrive-forgotten",
        "magnetar.runtime.transaction_store:work_due",
        "A restart does not carry out what was decided.",
        _one_marker_back,
    ),
    Fault(
        "replay-takes-the-first",
        "magnetar.runtime.transaction_store:latest_of_each_key",
        "A restart takes the first record of each transactional id, not the last.",
        _earliest_of_each_key,
    ),
    Fault(
        "timeouts-off",
        "magnetar.runtime.transaction_expiry:TransactionExpiry.expire_due",
        "No transaction times out.",
        _ignored,
    ),
    Fault(
        "healing-off",
        "magnetar.runtime.healing:Healing.sweep",
        "Open data that no coordinator knows stays open.",
        _ignored_async,
    ),
    Fault(
        "stable-is-durable",
        "logstore.partition.transaction_buffer:TransactionBuffer.stabilize",
        "read_committed readers see open transactions.",
        _stable_is_durable,
    ),
    Fault(
        "aborted-not-told",
        "logstore.segments.aborted_index:AbortedIndex.overlapping",
        "A fetch does not say which transactions were aborted.",
        _always([]),
    ),
    Fault(
        "aborted-forgotten",
        "logstore.partition.state_recovery:_read_aborted",
        "A restart forgets what was aborted before its snapshot.",
        lambda real: lambda ledger, end_offset: (type(real(ledger, 0)[0])(), True),
    ),
    # Groups.
    Fault(
        "pending-acks-kept",
        "coordinator.groups.offsets.store:GroupOffsets.on_marker",
        "An abort commits the offsets of its transaction.",
        lambda real: lambda self, *producer, commit: real(self, *producer, commit=True),
    ),
    Fault(
        "pending-acks-forgotten",
        "magnetar.runtime.shard:RunningShard.replay",
        "A restart forgets the offsets of open transactions.",
        _without_pending,
    ),
    Fault(
        "generation-not-checked",
        "coordinator.groups.committing:_check_committer",
        "A member that was replaced can still commit.",
        _ignored,
    ),
    Fault(
        "owners-ignored",
        "coordinator.groups.consumer.assignment:_compare",
        "A partition is given away before its owner has given it back.",
        _freed_by_nobody,
    ),
    # Deletion.
    Fault(
        "start-not-persisted",
        "magnetar.storage.logs:Logs.persist_start_offsets",
        "DeleteRecords is answered before it is durable.",
        _ignored_async,
    ),
    Fault(
        "start-not-synced",
        "logstore.directory.log_offsets:LogOffsets.write",
        "The offsets where logs start are written and not synced.",
        _unsynced,
    ),
    Fault(
        "trim-too-far",
        f"{_LOG}.advance_start",
        "DeleteRecords deletes one record too many.",
        lambda real: lambda self, offset: real(self, min(offset + 1, self.high_watermark)),
    ),
    Fault(
        "retention-too-early",
        "logstore.partition.log:due",
        "Retention deletes from topics that keep everything.",
        _with_short_retention,
    ),
    Fault(
        "compaction-keeps-the-first",
        "logstore.cleaner.offset_map:OffsetMap.put",
        "Compaction keeps the first record of a key that it finds.",
        _first_stays,
    ),
    Fault(
        "compaction-loses-the-last",
        "logstore.cleaner.offset_map:OffsetMap.get",
        "Compaction deletes the last record of a key.",
        _newest_of_key_forgotten,
    ),
    Fault(
        "stray-not-set-aside",
        "logstore.directory.log_directory:LogDirectory._set_stray_aside",
        "A new topic takes over the files of a deleted one of its name.",
        _always(False),
    ),
    # The edge.
    Fault(
        "answers-swapped",
        "magnetar.server.connection:ClientConnection._take_ready",
        "Answers leave in another order than the requests.",
        _swapped,
    ),
    Fault(
        "frame-head-lost",
        "magnetar.server.frames:FrameReader.received",
        "A size that arrives in two pieces is lost.",
        _head_lost,
    ),
)


async def _true() -> bool:
    return True


def _measured(recovery: Any, segments: list[Any], result: Any) -> Any:
    yield from ()
    if segments:
        recovery._measure(segments[-1], result)
    return segments


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant the fault of that name, or none for an empty one."""
    if not name:
        yield
        return
    (fault,) = (each for each in FAULTS if each.name == name)
    module, _, path = fault.where.partition(":")
    holder: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for each in classes:
        holder = getattr(holder, each)
    real = getattr(holder, attribute)
    setattr(holder, attribute, fault.make(real))
    try:
        yield
    finally:
        setattr(holder, attribute, real)
