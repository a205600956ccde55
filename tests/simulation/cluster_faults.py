"""Faults of a cluster whose partitions move: planted in histories of a cluster alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from logstore.remote.object_store import ObjectsUnavailable
from tests.simulation import faulty_functions as faulty
from tests.simulation.fault import Fault

_STORE = "tests.logstore.remote.simulated_store:SimulatedDatabase"


def _unfenced(real: Any) -> Any:
    """Return a commit that does not ask which incarnation of the node writes."""

    def commit(self: Any, node_id: int, _: int, commit: Any) -> Any:
        node = self.nodes[node_id]
        return real(self, node_id, node.incarnation, commit._replace(previous=node.number))

    return commit


def _taken_unfenced(real: Any) -> Any:
    """Return a take-over that leaves the incarnation of the former leader as it was."""

    def take_over(self: Any, node_id: int, incarnation: int) -> int | None:
        fenced: int | None = real(self, node_id, incarnation)
        if fenced is not None:
            with self._database.transaction("leave the incarnation") as database:
                database.execute(
                    "UPDATE nodes SET incarnation = ? WHERE node_id = ?", (incarnation, node_id)
                )
        return fenced

    return take_over


def _landed_is_proven(_: Any) -> Any:
    """Return a proof that asks for none: what has had its effect is acknowledged."""

    async def prove(self: Any, one: Any) -> None:
        self._store.proven = one.commit.number
        one.make_room_once()
        self._note_proven()

    return prove


def _without_work(real: Any) -> Any:
    """Return a beginning of a shard that carries out nothing of what was decided before."""

    def begin(self: Any, *arguments: Any) -> None:
        begin, self.commits.begin = self.commits.begin, faulty.nothing
        try:
            real(self, *arguments)
        finally:
            self.commits.begin = begin

    return begin


def _closed_at_once(_: Any) -> Any:
    """Return a hand-over that waits neither for what was appended nor for its own snapshot."""

    async def close(self: Any, logs: Any) -> None:
        directory = self._logs._directory
        for log in logs:
            directory._take(log)
            log.close()

    return close


def _write_believed(real: Any) -> Any:
    """Return a write of an object that is taken for done, also where it was lost."""

    async def put(self: Any, key: str, data: Any) -> None:
        with suppress(ObjectsUnavailable):
            await real(self, key, data)

    return put


def _move_given_up(real: Any) -> Any:
    """Return an end of a log that tells a move under way that nothing has moved."""

    def close(self: Any) -> None:
        if self._moving is not None and not self._moving.done.done():
            self._moving.done.set_result(False)
        real(self)

    return close


class _Everything:
    """A set that holds every key."""

    def __rand__(self, keys: set[str]) -> set[str]:
        return keys


def _at_first_sight(real: Any) -> Any:
    """Return a sweep that takes every object for one that it has seen before."""

    async def sweep(self: Any) -> int:
        self._unnamed = _Everything()
        swept: int = await real(self)
        return swept

    return sweep


#: Of a cluster whose partitions move.
CLUSTER_FAULTS = (
    Fault(
        "commit-not-fenced",
        f"{_STORE}.commit",
        "A commit has effect whichever incarnation of its node writes.",
        _unfenced,
    ),
    Fault(
        "take-over-not-fenced",
        "magnetar.storage.catalog_nodes:CatalogNodes.take_over",
        "A take-over gives partitions away and lets their former leader write on.",
        _taken_unfenced,
    ),
    Fault(
        "epoch-not-raised",
        "magnetar.storage.leadership:next_epoch",
        "A partition that moves has the leader epoch of its new leader's start.",
        faulty.always(0),
    ),
    Fault(
        "proof-not-awaited",
        "logstore.remote.store_commits:StoreCommits._prove",
        "A commit is acknowledged before it is proven that a standby has it.",
        _landed_is_proven,
    ),
    Fault(
        "basis-not-asked-for",
        f"{_STORE}._is_there",
        "A marker is there without the decision, and data without its hold.",
        faulty.always(True),
    ),
    Fault(
        "hand-over-not-awaited",
        "magnetar.storage.led_partitions:LedPartitions.close",
        "A partition is handed over while a commit of its records is under way.",
        _closed_at_once,
    ),
    Fault(
        "decisions-not-taken-over",
        "magnetar.runtime.transaction_store:TransactionStore._begin",
        "A coordinator that has moved does not carry out what was decided before.",
        _without_work,
    ),
    Fault(
        "left-markers-forgotten",
        "magnetar.runtime.markers_elsewhere:MarkersElsewhere._append_here",
        "A marker of a partition that has come here since the decision counts as written.",
        faulty.ignored_async,
    ),
    Fault(
        "waiting-commits-kept",
        "magnetar.runtime.commit:Commits.abandon",
        "A coordinator that has moved leaves its commits under way behind.",
        faulty.ignored,
    ),
    Fault(
        "moving-shards-not-asked",
        "magnetar.runtime.producers_elsewhere:Answers.are_all_asked",
        "Healing takes for unknown what a shard that moves may know.",
        faulty.always(True),
    ),
    Fault(
        "lost-object-named",
        "tests.logstore.simulated_objects:SimulatedObjects.put",
        "The database names an object whose write was lost.",
        _write_believed,
    ),
    Fault(
        "object-of-a-move-deleted",
        "logstore.remote.remote_ledger:RemoteLedger.close",
        "A hand-over deletes the object of a move whose commit is under way.",
        _move_given_up,
    ),
    Fault(
        "swept-at-first-sight",
        "logstore.remote.offload:Sweep.sweep",
        "A sweep deletes objects whose references are about to be committed.",
        _at_first_sight,
    ),
)
