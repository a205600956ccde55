"""Faults that are planted in the broker, to prove that histories find them.

Each replaces one function of the product. `docs/testing.md` has the table: within how many seeds
each is found, and what the simulation lacks for those that it does not find.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from coordinator.transactions.epochs import Relation
from logstore.directory.journal_replay import Replayed
from magnetar.runtime.producers_elsewhere import Answers
from tests.simulation import faulty_functions as faulty
from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.fault import Fault

_COMMIT = "logstore.sync.group_commit:GroupCommit"
_LOG = "logstore.partition.log:PartitionLog"
_PRODUCERS = "logstore.partition.producer_state:Producers"
_CATALOG = "magnetar.storage.catalog:Catalog"
#: Families of histories: of a disk that fills, fails and rots; of a broker that asks for a login.
AILING, SECURED = "ailing", "secured"
_PARTICIPANTS = "magnetar.runtime.participants:LocalParticipants"


class BrokenPlant(Exception):
    """A planted function does not fit the product any more: what is found then says nothing."""


FAULTS = (
    # Durability.
    Fault(
        "sync-skipped",
        "logstore.sync.file_syncs:FileSyncs.perform",
        "A sync is reported as done, and nothing is synced.",
        lambda _: (
            lambda self, _syncs, done, *_, **__: self._executor.call_soon(partial(done, None))
        ),
    ),
    Fault(
        "durable-not-awaited",
        "logstore.sync.group_commit:CommittedLedger.when_durable",
        "A batch is acknowledged when it is appended.",
        faulty.always(False),
    ),
    Fault(
        "waiters-served-early",
        "logstore.sync.group_commit:CommittedLedger.take_served",
        "A sync answers also those whose bytes it does not cover.",
        faulty.all_served,
    ),
    Fault(
        "visible-at-once",
        f"{_LOG}._append",
        "The high watermark moves with the append, not with the sync.",
        faulty.visible_at_once,
    ),
    Fault(
        "journal-not-replayed",
        "logstore.directory.log_directory:replay_journal",
        "A start does not look at the journal.",
        faulty.always(Replayed()),
    ),
    Fault(
        "journal-round-not-counted",
        "logstore.sync.journal:Journal.begin_round",
        "The next round of the journal has the number of the last.",
        faulty.round_uncounted,
    ),
    Fault(
        "directories-not-synced",
        "logstore.sync.file_syncs:sync_barriers",
        "New names are not synced.",
        faulty.without_directories,
    ),
    Fault(
        "files-not-flushed",
        "logstore.sync.file_syncs:FileSyncs._sync",
        "The thread begins a new round of the journal, and has synced no file.",
        lambda _: lambda self, *_, **__: self.journal and self.journal.begin_round(),
    ),
    Fault(
        "tail-trusted",
        "logstore.segments.batch_recovery:_is_valid",
        "Recovery takes a torn batch for a whole one.",
        faulty.always(True),
    ),
    Fault(
        "tail-not-cut",
        "logstore.segments.batch_recovery:Recovery._recover",
        "Recovery trusts the sizes of the files.",
        lambda real: lambda self, segments, result: faulty.measured(self, segments, result),
    ),
    Fault(
        "catalog-not-synced",
        "tests.simulation.world.storage:SimulatedDatabase._keep",
        "Half of the catalog's commits do not survive a crash.",
        faulty.catalog_forgets,
    ),
    # A disk that fails.
    Fault(
        "cut-untold",
        "magnetar.storage.disk_reports:tell_damage",
        "What a damaged log has lost is told to no operator.",
        faulty.ignored,
        family=AILING,
    ),
    # Idempotence.
    Fault(
        "sequence-not-checked",
        f"{_PRODUCERS}.check",
        "A batch that was sent again is appended again.",
        faulty.ignored,
    ),
    Fault(
        "last-batches-forgotten",
        f"{_LOG}.opening",
        "A restart forgets the last five batches of each producer.",
        faulty.without_last_batches,
    ),
    Fault(
        "duplicate-misplaced",
        "logstore.partition.log:appended_before",
        "A duplicate is answered with the offset after the original's.",
        faulty.one_further,
    ),
    Fault(
        "producer-ids-again",
        "magnetar.storage.catalog:Catalog.allocate_producer_ids",
        "Every start gives out the same producer ids.",
        faulty.always(0),
    ),
    # Transactions.
    Fault(
        "epoch-not-checked",
        "coordinator.transactions.end_txn:relation",
        "EndTxn takes every producer for the current one.",
        faulty.always(Relation.CURRENT),
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
        faulty.ignored,
    ),
    Fault(
        "zombie-data-accepted",
        f"{_PRODUCERS}.check_epoch",
        "A partition takes data of an earlier epoch.",
        faulty.ignored,
    ),
    Fault(
        "marker-lost",
        f"{_PARTICIPANTS}.append",
        "The last partition of a transaction gets no marker.",
        faulty.all_but_last_partition,
    ),
    Fault(
        "abort-commits",
        f"{_PARTICIPANTS}._append_to",
        "Every marker says commit.",
        faulty.with_later(commit=True),
    ),
    Fault(
        "commit-not-awaited",
        "magnetar.runtime.commit:Commits.when_visible",
        "EndTxn is answered before its markers are durable.",
        faulty.answered_at_once,
    ),
    Fault(
        "abort-not-awaited",
        "magnetar.runtime.commit:Commits.visible",
        "InitProducerId goes on before the markers of the last transaction are durable.",
        lambda _: lambda self, _id: faulty.true(),
    ),
    Fault(
        "decision-not-awaited",
        "magnetar.runtime.shard:RunningShard.durable",
        "A coordinator answers before its decision is durable.",
        faulty.ignored_async,
    ),
    Fault(
        "redrive-forgotten",
        "coordinator.transactions.shard:work_due",
        "A restart does not carry out what was decided.",
        faulty.one_marker_back,
    ),
    Fault(
        "replay-takes-the-first",
        "magnetar.runtime.shard:not_replaced",
        "A restart takes the first record of each key, not the last.",
        faulty.earliest_of_each_key,
    ),
    Fault(
        "timeouts-off",
        "magnetar.runtime.transaction_expiry:TransactionExpiry.expire_due",
        "No transaction times out.",
        faulty.ignored,
    ),
    Fault(
        "healing-off",
        "magnetar.runtime.healing:Healing.sweep",
        "Open data that no coordinator knows stays open.",
        faulty.ignored_async,
    ),
    Fault(
        "stable-is-durable",
        "logstore.partition.transaction_buffer:TransactionBuffer.stabilize",
        "read_committed readers see open transactions.",
        faulty.stable_is_durable,
    ),
    Fault(
        "aborted-not-told",
        "logstore.segments.aborted_index:AbortedIndex.overlapping",
        "A fetch does not say which transactions were aborted.",
        faulty.always([]),
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
        faulty.without_pending,
    ),
    Fault(
        "generation-not-checked",
        "magnetar.runtime.group_offsets:check_committer",
        "A member that was replaced can still commit.",
        faulty.ignored,
    ),
    Fault(
        "owners-ignored",
        "coordinator.groups.consumer.assignment:_compare",
        "A partition is given away before its owner has given it back.",
        faulty.freed_by_nobody,
    ),
    # Deletion.
    Fault(
        "start-not-persisted",
        "magnetar.storage.logs:Logs.persist_start_offsets",
        "DeleteRecords is answered before it is durable.",
        faulty.ignored_async,
    ),
    Fault(
        "start-not-synced",
        "logstore.directory.log_offsets:LogOffsets.write",
        "The offsets where logs start are written and not synced.",
        faulty.unsynced,
    ),
    Fault(
        "trim-too-far",
        f"{_LOG}.advance_start",
        "DeleteRecords deletes one record too many.",
        lambda real: lambda self, offset: real(self, min(offset + 1, self.high_watermark)),
    ),
    Fault(
        "retention-too-early",
        "logstore.partition.retention:due",
        "Retention deletes from topics that keep everything.",
        faulty.with_short_retention,
    ),
    Fault(
        "compaction-keeps-the-first",
        "logstore.cleaner.offset_map:OffsetMap.put",
        "Compaction keeps the first record of a key that it finds.",
        faulty.first_stays,
    ),
    Fault(
        "compaction-loses-the-last",
        "logstore.cleaner.batches:BatchCleaner._staying",
        "Compaction deletes the last record of a key.",
        lambda real: lambda self, header, spans, keeps: real(self, header, spans, keeps)[:-1],
    ),
    Fault(
        "stray-not-set-aside",
        "logstore.directory.log_directory:LogDirectory._set_stray_aside",
        "A new topic takes over the files of a deleted one of its name.",
        faulty.always(False),
    ),
    # The edge.
    Fault(
        "answers-swapped",
        "magnetar.server.connection:ClientConnection._take_ready",
        "Answers leave in another order than the requests.",
        faulty.swapped,
    ),
    Fault(
        "frame-head-lost",
        "magnetar.server.frames:FrameReader.received",
        "A size that arrives in two pieces is lost.",
        faulty.head_lost,
    ),
    # Access.
    Fault(
        "half-a-login-counts",
        "magnetar.security.session:Session.admit",
        "A client that has begun a login may send any request.",
        faulty.admitting_half_logins,
        family=SECURED,
    ),
    Fault(
        "rights-of-a-fetch-kept",
        "magnetar.apis.fetch:require",
        "A client that once could fetch from a topic always can.",
        faulty.once_allowed,
        family=SECURED,
    ),
    Fault(
        "waiting-fetch-not-refused",
        "magnetar.apis.fetch:_find_again",
        "A fetch that waits answers with what it read before READ was taken away.",
        faulty.ignored,
        family=SECURED,
    ),
    Fault(
        "decisions-kept",
        "magnetar.security.authorizer:Authorizer._forget",
        "What was decided once is not decided again when the rules change.",
        faulty.ignored,
        family=SECURED,
    ),
    Fault(
        "acl-not-read",
        f"{_CATALOG}.acls",
        "A restart forgets one of the ACLs.",
        lambda real: lambda self: real(self)[:-1],
        family=SECURED,
    ),
    Fault(
        "removed-acls-back",
        f"{_CATALOG}.remove_acls",
        "A restart brings back the ACLs that were removed.",
        faulty.ignored,
        family=SECURED,
    ),
    Fault(
        "refused-and-done",
        "magnetar.server.route:guarded",
        "What a client may not do is refused, and done all the same.",
        faulty.refused_and_done,
        family=SECURED,
    ),
    Fault(
        "metadata-of-all",
        "magnetar.apis.metadata:may",
        "Metadata names topics that the client may not describe.",
        faulty.always(True),
        family=SECURED,
    ),
)


#: Of several nodes: planted in histories of nodes alone.
NODE_FAULTS = (
    Fault(
        "markers-elsewhere-forgotten",
        "magnetar.runtime.markers_elsewhere:MarkersElsewhere.divided",
        "A coordinator is done when the partitions of its own node have their markers.",
        faulty.own_alone,
    ),
    Fault(
        "holds-elsewhere-not-asked",
        "coordinator.transactions.remembered_holds:RememberedHolds.holds",
        "A node takes data whose coordinator, on another node, was not asked.",
        faulty.always(True),
    ),
    Fault(
        "silence-is-an-answer",
        "magnetar.runtime.producers_elsewhere:ProducersElsewhere.find",
        "Healing takes for unknown what only the coordinators here do not know.",
        faulty.always_async(Answers({}, is_complete=True)),
    ),
    Fault(
        "marker-elsewhere-not-awaited",
        "magnetar.runtime.peer_requests:_when_marked",
        "A node answers markers before they are durable.",
        faulty.marked_early,
    ),
    Fault(
        "votes-not-named",
        "coordinator.transactions.joint:_votes",
        "The decision of a joint transaction names none of its votes.",
        faulty.always(()),
    ),
)

#: Not found within 80 histories, and what these lack.
UNFOUND = {
    "aborted-forgotten": (
        "a second defence: a snapshot names the last abort, and one that the index does not know"
        " has the whole log replayed"
    ),
    "decision-not-awaited": (
        "storage without a journal, power that goes between the syncs of two files, and a client"
        " that dies before it asks for its end again"
    ),
    "journal-round-not-counted": (
        "a write of the journal that is lost within the round that the power ends: entries of"
        " earlier rounds are in their files already, so to write them again changes nothing"
    ),
}


def family_of(name: str) -> str:
    """Return which family of histories can find the fault of that name."""
    return next((fault.family for fault in FAULTS if fault.name == name), "")


def check_plant(errors: Iterable[BaseException]) -> None:
    """Raise BrokenPlant where one of these errors comes of a call that does not fit."""
    for error in errors:
        if isinstance(error, TypeError | AttributeError | NameError):
            raise BrokenPlant(repr(error)) from error


def place_of(fault: Fault) -> tuple[Any, str]:
    """Return the module or class that has the function in whose place a fault is planted, and the
    function's name. Raises ImportError or AttributeError if the product has no such place."""
    module, _, path = fault.where.partition(":")
    holder: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for each in classes:
        holder = getattr(holder, each)
    getattr(holder, attribute)
    return holder, attribute


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant the fault of that name, or none for an empty one."""
    if not name:
        yield
        return
    (fault,) = (each for each in (*FAULTS, *NODE_FAULTS, *CLUSTER_FAULTS) if each.name == name)
    holder, attribute = place_of(fault)
    real = getattr(holder, attribute)
    setattr(holder, attribute, fault.make(real))
    try:
        yield
    finally:
        setattr(holder, attribute, real)
