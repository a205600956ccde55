"""The logs of one node of a cluster, in the store that all nodes share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import partial
from uuid import UUID

from logstore.disk.durability import Durability
from logstore.disk.room import Room
from logstore.partition.log_config import LogConfig
from logstore.remote.backlog import Backlog
from logstore.remote.bulk_store import BulkStore
from logstore.remote.commit_sizes import taking_turns
from logstore.remote.commit_store import Basis, CommitStore, LogKey
from logstore.remote.object_store import NoSuchObject, ObjectStore, ObjectsUnavailable
from logstore.remote.offload import PREFIX, Bulk, Offload, Sweep
from logstore.remote.remote_directory import RemoteDirectory
from logstore.remote.store_commits import StoreCommits, boot_time_ms
from logstore.sync.group_commit import GroupCommit
from logstore.sync.sync_executors import SyncExecutor
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig
from magnetar.config.topic import TopicConfig
from magnetar.logging import get_logger
from magnetar.storage.backlog_room import room_for
from magnetar.storage.logs import Logs
from magnetar.storage.topic_names import INTERNAL

_log = get_logger("logs")

#: A node that takes over a partition reads its active segment, mostly, and a snapshot. Retention
#: and compaction go by segments of this size too, where the topic's are not smaller.
SEGMENT_BYTES = 8 << 20


class RemoteLogs(Logs):
    """`Logs` over a shared store, which lets no other incarnation than `begin_as` said write."""

    def __init__(
        self,
        store: CommitStore,
        config: BrokerConfig,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        *,
        objects: ObjectStore | None = None,
        objects_prefix: str = PREFIX,
        executor: SyncExecutor | None = None,
        now_ms: Callable[[], int] = boot_time_ms,
    ) -> None:
        """`objects`: where older batches move to; None: they stay. `objects_prefix`: of the keys
        that no other store uses there. `executor` and `now_ms`, as `StoreCommits` has it, are
        others in a simulation."""
        self._store, self._objects, self._objects_prefix = store, objects, objects_prefix
        if objects is None:
            # All bytes are in rows: what is appended meanwhile waits until they are deleted.
            self.trimmed_together = 1
        self._objects_after_ms = config.view(ClusterConfig).cluster_objects_after_ms
        stored = self.bulk_store = BulkStore(store, objects, self._tell_unread)
        commits = StoreCommits(store, now_ms=now_ms, on_trouble=_tell_trouble)
        group_commit = GroupCommit(
            None,
            Durability.FSYNC,
            on_failure=on_failure,
            executor=executor,
            medium=commits,
            choose=taking_turns,
        )
        commits.on_ordered = group_commit.begin_order()
        self._commits, self._own = commits, (-1, -1)
        self.bases = self
        self._remote = RemoteDirectory(
            store,
            stored,
            commits,
            group_commit,
            steady_ms=clock.steady_ms,
            is_loaded_whole=INTERNAL.__contains__,
            on_away=_tell_away,
        )
        room = Room(partial(int, sys.maxsize), 0, lambda is_full, free_bytes: None)
        bytes_max = config.view(ClusterConfig).cluster_objects_backlog_max_bytes
        if objects is not None and bytes_max:
            room = room_for(Backlog(self._remote.offloadable, clock.steady_ms), bytes_max)
        super().__init__(config, group_commit, self._remote, room)

    def begin_as(self, node_id: int, incarnation: int) -> None:
        super().begin_as(node_id, incarnation)
        self._store.begin_as(node_id, incarnation)
        self._own = (node_id, incarnation)
        if self._objects is not None:
            where = (self._objects, self._objects_prefix)
            offload = Offload(self._store, *where, incarnation, self._objects_after_ms)
            self.bulk = Bulk(*where, offload, Sweep(self._store, *where, self._group_commit.settle))

    @property
    def is_leased(self) -> bool:
        """Whether no other node can have taken over this one's partitions yet.

        What is read from memory while it is false may be old.
        """
        return self._commits.is_leased

    async def lease_ended(self) -> None:
        await self._commits.lease_ended()

    async def in_time(self, work: Coroutine[None, None, object], bound_s: float = 5.0) -> bool:
        return await self._remote.in_time(work, bound_s)

    def proof(self) -> Callable[[], bool | None]:
        return self._commits.proof()

    def basis(self) -> Basis | None:
        number = self._commits.last_unproven
        return None if number is None else Basis(*self._own, number)

    def rest_on(self, basis: Basis) -> None:
        self._commits.rest_on(basis)

    async def proven(self) -> None:
        """Return when a commit has returned that began after the call.

        So this node led its partitions at some moment after the call, and whatever was durable then
        is for good. Raises StorageFailure.
        """
        await self._group_commit.settle()

    async def after_trim(self) -> None:
        # One commit deletes what one step has trimmed: with gigabytes it would last for longer than
        # a commit may, and be sent again for ever.
        await self._group_commit.settle()

    async def delete_remains(self, topic_ids: Collection[UUID]) -> set[UUID]:
        found = await self._store.remains(topic_ids)
        if found:
            await self._store.delete(found)
        return {key.topic_id for key in found}

    async def bucket_away(self) -> str:
        if self._objects is None or not any(each.moved_to for each in self._remote.offloadable()):
            return ""
        try:
            await self._objects.read(f"{self._objects_prefix}/none", 0, 1)
        except NoSuchObject:
            return ""
        except ObjectsUnavailable as away:
            return away.detail
        return ""

    def _tell_unread(self, key: LogKey, reason: str) -> None:
        log = self._remote.log_of(key)
        _log.error(
            "older batches cannot be read from the bucket: `magnetar cluster doctor` tells which"
            " objects are missing",
            topic=str(key.topic_id) if log is None else log.topic,
            partition=key.partition,
            reason=reason,
        )

    def settings(self, topic: str, config: TopicConfig) -> LogConfig:
        settings = super().settings(topic, config)
        return replace(
            settings,
            segment_bytes=min(settings.segment_bytes, SEGMENT_BYTES),
            snapshot_interval_bytes=SEGMENT_BYTES,
        )


def _tell_trouble(reason: str) -> None:
    _log.warning("the outcome of a commit is not known: the store is asked", reason=reason)


def _tell_away(reason: str) -> None:
    _log.warning("the store does not answer: what is asked of it for logs waits", reason=reason)
