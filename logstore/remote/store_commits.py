"""The medium of group commit where ledgers are in a shared store: one commit for each sync.

One commit at a time is under way. When its outcome is unknown, the store is asked for the number of
the last commit, as often as it takes. Either this commit has landed; then a *later* one has to
return before anything is acknowledged, because what a read shows may be lost with a standby's
promotion. Or it has not, and is sent again, behind the last one that is there. A copy that is still
on its way has no effect after that: the commit that it has to follow is not the last one any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import (
    LEASE_MS,
    NOTHING,
    Changes,
    Commit,
    CommitsLost,
    CommitStore,
    Fenced,
    Forgotten,
    NodeFenced,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.remote.remote_ledger import RemoteSync
from logstore.sync.group_commit import Performed
from logstore.sync.sync_executors import Sync

#: The own copy of the lease ends so much earlier than the store's: clocks may drift apart.
LEASE_MARGIN_MS = 1_000
#: Waits before the store is asked again.
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 0.25


def boot_time_ms() -> int:
    """Return the time since the machine's start, suspended or not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StoreCommits:
    """Commits what ledgers have written, and keeps this incarnation's lease."""

    def __init__(
        self,
        store: CommitStore,
        *,
        now_ms: Callable[[], int] = boot_time_ms,
        on_trouble: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`now_ms` is a clock that is never set and goes on while the machine sleeps.

        `on_trouble` is told when the outcome of a commit is unknown.
        """
        self._store = store
        self._now_ms = now_ms
        self._on_trouble = on_trouble
        self._number = 0  # the highest that any commit was given
        self._last = 0  # of the last commit that has returned
        self._task: asyncio.Task[None] | None = None
        self._lease_until_ms = 0
        #: When the last commit that has returned was sent, by `now_ms`.
        self.renewed_at_ms = 0

    @property
    def is_leased(self) -> bool:
        """Whether no other node can have taken over this one's partitions yet."""
        return self._now_ms() < self._lease_until_ms

    def proof(self) -> Callable[[], bool]:
        """Return what tells whether a commit has returned that was sent after this call."""
        asked_at_ms = self._now_ms()
        return lambda: self.renewed_at_ms > asked_at_ms

    async def begin(self) -> None:
        """Connect, and find out which number the next commit has.

        Raises NodeFenced, CommitsLost, StoreUnavailable.
        """
        await self._store.connect()
        self._number = self._last = await self._ask()

    def perform(self, syncs: Sequence[Sync], done: Performed, *, settles: bool) -> None:
        """Commit what these have to write; with none, renew the lease."""
        carry_out = self._carry_out(changes_of(syncs), done)
        self._task = asyncio.get_running_loop().create_task(carry_out)
        self._task.add_done_callback(_raise)

    async def _carry_out(self, changes: Changes, done: Performed) -> None:
        failure: StorageFailure | None = None
        try:
            await self._make_durable(changes)
        except StorageFailure as failed:
            failure = failed
        done(failure)

    async def _make_durable(self, changes: Changes) -> None:
        """Return when the changes are there for good. Raises NodeFenced, CommitsLost."""
        commit = wanted = self._behind(self._last, changes)
        while True:
            sent_at_ms = self._now_ms()
            try:
                await self._store.commit(commit)
            except (OutcomeUnknown, Fenced) as trouble:
                self._on_trouble(str(trouble))
            else:
                self._last = commit.number
                self.renewed_at_ms = sent_at_ms
                self._lease_until_ms = sent_at_ms + LEASE_MS - LEASE_MARGIN_MS
                return
            last = await self._last_landed()
            # What has landed is not proven before another commit has returned.
            has_landed = last >= wanted.number
            commit = self._behind(last) if has_landed else wanted._replace(previous=last)

    def _behind(self, previous: int, changes: Changes = NOTHING) -> Commit:
        self._number += 1
        return Commit(self._number, previous, changes)

    async def _last_landed(self) -> int:
        """Ask for the last commit until the store answers. Raises NodeFenced, CommitsLost."""
        wait_s = _RETRY_FIRST_S
        while True:
            try:
                await self._store.connect()
                last = await self._ask()
            except StoreUnavailable:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MAX_S)
            else:
                break
        if last < self._last:
            raise CommitsLost(
                f"the store says that commit {last} was this node's last one, but {self._last} was"
                " acknowledged: it has failed over to a standby that was behind"
            )
        return last

    async def _ask(self) -> int:
        """Return the last commit's number. Raises NodeFenced, CommitsLost, StoreUnavailable."""
        try:
            return await self._store.last_commit()
        except Fenced as fenced:
            raise NodeFenced(f"{fenced} was taken over, or started once more") from fenced
        except Forgotten as forgotten:
            raise CommitsLost(
                f"the store has forgotten {forgotten}: it has failed over to a standby that was"
                " behind"
            ) from forgotten

    def close(self) -> None:
        """Commit nothing more."""
        if self._task is not None:
            self._task.cancel()


def _raise(task: asyncio.Task[None]) -> None:
    """Raise what has ended a commit, where the event loop's exception handler hears of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def changes_of(syncs: Sequence[Sync]) -> Changes:
    """Return what these write, together."""
    changed = [sync.changes for sync in syncs if isinstance(sync, RemoteSync)]
    if len(changed) == 1:
        return changed[0]
    return Changes(
        [one for changes in changed for one in changes.chunks],
        [one for changes in changed for one in changes.segments],
        [one for changes in changed for one in changes.starts],
        [one for changes in changed for one in changes.attachments],
        [one for changes in changed for one in changes.swaps],
        [one for changes in changed for one in changes.moves],
    )
