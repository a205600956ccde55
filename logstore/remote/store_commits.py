"""The medium of group commit for ledgers in a shared store: one commit for each sync.

A commit passes two moments:

- It has its *effect*: the store has it. From then on it is *ordered*: a later commit of any node
  that rests on it (`Basis`) comes after it. The next commit is sent only then.
- It is *proven*: no fail-over to a synchronous standby can take it back, since the standby has it
  too. Without a standby a commit is proven when it has its effect. It is acknowledged only then.
  The proof of a commit proves all earlier commits too.

Several proofs may be under way at the same time, beside the next commit. So commits do not wait for
the standby one after the other.

If anything goes wrong, the store is asked for the number of the last commit, until it answers.
Commits that have had no effect are sent again, in their order and with their numbers. A first copy
that is still on its way then has no effect: the commit that it has to follow is not the last one
any more. A commit that has had its effect still has to be proven, because a read may show what is
lost when a standby is promoted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import (
    LEASE_MS,
    PROOFS_MAX,
    Basis,
    BasisLost,
    Changes,
    Commit,
    CommitsLost,
    CommitStore,
    Fenced,
    Forgotten,
    NodeFenced,
    NoRoom,
    OutcomeUnknown,
    StoreUnavailable,
)
from logstore.remote.remote_ledger import RemoteSync
from logstore.sync.medium import Performed
from logstore.sync.sync_executors import Sync

#: This node's own copy of its lease ends so much earlier: its clock may drift from the store's.
LEASE_MARGIN_MS = 1_000
#: How long to wait before the store is asked again, at first and at most.
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 0.25


def boot_time_ms() -> int:
    """Return the time since the machine's start, suspended or not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class _Unproven:
    """A commit that is not proven yet: a fail-over may take it back."""

    def __init__(self, commit: Commit, done: Performed, make_room: Callable[[], None]) -> None:
        self.commit = commit
        self.done = done
        self._make_room: Callable[[], None] | None = make_room
        #: When the commit was sent, by `now_ms`. It renewed the lease then or later.
        self.sent_at_ms = 0
        self.had_effect = False
        self.is_ordered = False

    def make_room_once(self) -> None:
        """Let the next commit begin."""
        make_room, self._make_room = self._make_room, None
        if make_room is not None:
            make_room()


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
        self._number = 0  # the highest number that a commit was given
        self._last_effect = 0  # the number of the last commit known to have had its effect
        #: What the next commit rests on, by node.
        self._bases: dict[int, Basis] = {}
        #: Called for each commit, in their order, when it is ordered, before it is acknowledged.
        self.on_ordered: Callable[[], None] = _ignore
        self._proven = 0  # the number of the last commit that was acknowledged
        #: In the order of their numbers; `perform` adds at the end.
        self._unproven: deque[_Unproven] = deque()
        self._proofs = asyncio.Semaphore(PROOFS_MAX)
        self._recovering = asyncio.Lock()
        self._recoveries = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease_until_ms = 0
        #: When the last proven commit was sent, by `now_ms`.
        self.renewed_at_ms = 0

    @property
    def is_leased(self) -> bool:
        """Whether no other node can have taken over this one's partitions yet."""
        return self._now_ms() < self._lease_until_ms

    async def lease_ended(self) -> None:
        """Return when the lease has ended by this node's clock: others may have taken over."""
        while (left_ms := self._lease_until_ms - self._now_ms()) > 0:
            await asyncio.sleep(left_ms / 1000)

    def proof(self) -> Callable[[], bool | None]:
        """Return a function that tells whether a commit that was sent after this call is proven.

        It returns None after a recovery since this call: commits may go to another server by now,
        which may lack what was read before.
        """
        asked_at_ms, recoveries = self._now_ms(), self._recoveries

        def is_proven() -> bool | None:
            if recoveries != self._recoveries or self._recovering.locked():
                return None
            return self.renewed_at_ms > asked_at_ms

        return is_proven

    @property
    def last_unproven(self) -> int | None:
        """The number of the last commit that has had its effect; None if it is proven."""
        return None if self._last_effect <= self._proven else self._last_effect

    def rest_on(self, basis: Basis) -> None:
        """Let the next commit, and so all later ones, have no effect unless `basis` has its."""
        known = self._bases.get(basis.node_id, basis)
        self._bases[basis.node_id] = max(known, basis)

    async def begin(self) -> None:
        """Connect, and ask for the number of this incarnation's last commit.

        Raises NodeFenced, CommitsLost, StoreUnavailable.
        """
        await self._store.connect()
        self._number = self._proven = await self._ask()

    def perform(
        self,
        syncs: Sequence[Sync],
        done: Performed,
        make_room: Callable[[], None],
        *,
        settles: bool,
    ) -> None:
        """Commit what these syncs have to write. Without any, the commit renews the lease."""
        rests_on = (*self._bases.values(),)
        self._bases.clear()
        commit = Commit(self._number + 1, self._number, changes_of(syncs), rests_on)
        self._number = commit.number
        one = _Unproven(commit, done, make_room)
        self._unproven.append(one)
        task = asyncio.get_running_loop().create_task(self._carry_out(one))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _carry_out(self, one: _Unproven) -> None:
        try:
            await self._write(one)
            await self._prove(one)
        except StorageFailure as failure:
            self._fail(failure)

    async def _write(self, one: _Unproven) -> None:
        """Return when the commit has had its effect. Raises NodeFenced, CommitsLost."""
        async with self._recovering:
            recoveries = self._recoveries
        # A recovery may have sent it meanwhile. Then the next commit may be under way already.
        if not one.had_effect:
            one.sent_at_ms = self._now_ms()
            try:
                await self._send(one)
            except (OutcomeUnknown, Fenced) as trouble:
                self._on_trouble(str(trouble))
                await self._recover(recoveries)
        self._note_effect(one)
        self._note_proven()
        for each in self._unproven:
            if not each.had_effect:
                break
            self._order(each)

    def _note_effect(self, one: _Unproven) -> None:
        one.had_effect = True
        self._last_effect = max(self._last_effect, one.commit.number)

    def _order(self, one: _Unproven) -> None:
        if not one.is_ordered:
            one.is_ordered = True
            self.on_ordered()

    async def _prove(self, one: _Unproven) -> None:
        """Return when the commit is proven. Raises NodeFenced, CommitsLost."""
        number, changes = one.commit.number, one.commit.changes
        wait_s, told = _RETRY_FIRST_S, ""
        while number > self._proven:
            async with self._proofs:
                if number <= self._proven:
                    return
                # Swaps and moves hold up the next commit: the store and this node have to show them
                # in one step.
                if not (changes.swaps or changes.moves):
                    one.make_room_once()
                recoveries = self._recoveries
                try:
                    await self._store.prove(self._last_effect)
                except OutcomeUnknown as trouble:
                    if str(trouble) != told:
                        told = str(trouble)
                        self._on_trouble(told)
                    await self._recover(recoveries)
                    # It may fail at once, for long: the server has no connection left for proofs.
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, _RETRY_MAX_S)
            self._note_proven()

    def _note_proven(self) -> None:
        """Acknowledge the commits that the store has proven, in their order."""
        self._proven = max(self._proven, self._store.proven)
        while self._unproven and self._unproven[0].commit.number <= self._proven:
            one = self._unproven.popleft()
            self.renewed_at_ms = one.sent_at_ms
            self._lease_until_ms = one.sent_at_ms + LEASE_MS - LEASE_MARGIN_MS
            self._order(one)
            one.done(None)

    async def _recover(self, recoveries: int) -> None:
        """Let every unproven commit have its effect, in their order. Sends again what is missing.

        `recoveries`: how many recoveries there had been before the attempt that failed. Attempts
        that fail together need one recovery. Raises NodeFenced, CommitsLost.
        """
        async with self._recovering:
            wait_s, told, has_room = _RETRY_FIRST_S, "", True
            while recoveries == self._recoveries:
                last = await self._until_last_known()
                try:
                    if not has_room:
                        # No other node would have room either: none should take over.
                        await self._store.renew()
                    for one in [*self._unproven]:
                        if one.commit.number > last:
                            if not await self._may_send(one.commit):
                                break
                            await self._send(one)
                    else:
                        # While all nodes wait for the standby, no node should be taken over.
                        await self._store.renew()
                        self._recoveries += 1
                except (OutcomeUnknown, StoreUnavailable, Fenced) as trouble:
                    if isinstance(trouble, OutcomeUnknown):
                        has_room = not isinstance(trouble, NoRoom)
                    # A store that answers may refuse for long: read only, or with a full disk.
                    if str(trouble) != told:
                        told = str(trouble)
                        self._on_trouble(told)
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, _RETRY_MAX_S)

    async def _may_send(self, commit: Commit) -> bool:
        """Return whether the commits of other nodes that `commit` rests on have had their effect.

        If one has not, a fail-over has taken it back. Returns False then, after a short wait, since
        its node sends it again. Raises NodeFenced if that incarnation was replaced instead: this
        node must not keep what it has written.
        """
        if not commit.rests_on:
            return True
        try:
            if await self._store.has(commit.rests_on):
                return True
        except BasisLost as lost:
            raise NodeFenced(f"what this node has written rests on {lost}") from lost
        await asyncio.sleep(_RETRY_FIRST_S)
        return False

    async def _send(self, one: _Unproven) -> None:
        sent_at_ms = self._now_ms()
        await self._store.commit(one.commit)
        # Not before the commit returns: after a refusal, an earlier copy may have had its effect.
        one.sent_at_ms = sent_at_ms
        self._note_effect(one)

    def _fail(self, failure: StorageFailure) -> None:
        """End all commits, and report the failure once."""
        self.close()
        unproven, self._unproven = self._unproven, deque()
        if unproven:
            unproven[0].done(failure)

    async def _until_last_known(self) -> int:
        """Return the number of the last commit with effect; asks until the store answers.

        Raises NodeFenced, CommitsLost.
        """
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
        if last < self._proven:
            raise CommitsLost(
                f"the store says that commit {last} was this node's last one, but {self._proven}"
                " was acknowledged: it has failed over to a standby that was behind"
            )
        return last

    async def _ask(self) -> int:
        """Ask once for the number of the last commit.

        Raises NodeFenced, CommitsLost, StoreUnavailable.
        """
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
        for task in self._tasks:
            if task is not asyncio.current_task(task.get_loop()):
                task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Raise an unexpected exception of a commit to the event loop's exception handler."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _ignore() -> None:
    """Stand in for `on_ordered` until that is set."""


def changes_of(syncs: Sequence[Sync]) -> Changes:
    """Return what these syncs write, as one commit's changes."""
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
