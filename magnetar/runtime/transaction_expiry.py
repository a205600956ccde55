"""Deadlines at work: transactions past their timeout are aborted, ids long unused are forgotten.

One alarm is set to the earliest deadline of all ids, so a timeout is met to the millisecond and
nothing sweeps; the wall clock may be set meanwhile. A transaction that ends in time leaves the
alarm of its timeout in place, and the idle time of its id counts from that alarm, if the timeout is
short beside the idle time (`_LATE`). The rules are in `coordinator.transactions.expire`. No client
waits for any of it; the log names the client that let a transaction time out.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.deadlines import Deadlines
from coordinator.decision import Decision
from coordinator.transactions import expire
from coordinator.transactions.epochs import Decide
from coordinator.transactions.metadata import ENDED, State, TransactionMetadata
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger
from magnetar.runtime.alarm import Alarm
from magnetar.runtime.transaction_clients import TransactionClients
from magnetar.storage.database import CatalogUnavailable

#: Decisions in one turn of the event loop, a few milliseconds: where thousands are due at once,
#: clients are served in between.
_SLICE = 50
#: When a decision is tried again that the catalog did not answer.
_AGAIN_MS = 1_000
#: An id is forgotten late by at most one part in `_LATE` of its idle time.
_LATE = 10

_log = get_logger("transactions")

Txn = TransactionMetadata


class TransactionExpiry:
    """What becomes of transactional ids by the passing of time alone."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: TransactionClients,
        *,
        find: Callable[[str], Txn | None],
        parent_of: Callable[[Txn | None], Txn | None],
        newest_of: Callable[[Txn | None], Txn | None],
        submit: Callable[[str, Decide[None], int], Decision[Txn, None]],
    ) -> None:
        """`newest_of` returns the open or voted child that changed last, of the same parent.
        `submit` carries out a decision about an id, as of a time."""
        self._clock = clock
        self._clients = clients
        self._find = find
        self._parent_of = parent_of
        self._newest_of = newest_of
        self._submit = submit
        self._lifetimes = expire.Lifetimes(
            transactional_id_ms=config.transactional_id_expiration_ms,
            child_ms=config.joint_child_expiration_ms,
            vote_ms=config.joint_vote_timeout_ms,
        )
        self._deadlines = Deadlines()
        #: By transactional id: its deadline in wall time, and the steady time that this was when it
        #: was set. The wall clock may be set meanwhile; the time that is left stays the same.
        self._due: dict[str, tuple[int, int]] = {}
        self._alarm = Alarm(self.expire_due)
        self._is_paused = False
        #: Transactions that their timeout has aborted, and votes that no parent decided in time.
        self.timed_out = 0
        self.votes_expired = 0

    def schedule(self, txn: Txn, now_ms: int) -> None:
        """Look at the id when its next deadline comes. Call after every change of it, with the wall
        time of the change."""
        known, idle_ms = self._due.get(txn.transactional_id), self._lifetimes.transactional_id_ms
        if (
            known is not None
            and txn.state in ENDED
            and txn.parent_id is None
            and known[0] <= txn.updated_at_ms + min(txn.timeout_ms, idle_ms // _LATE)
        ):
            # Every transaction ends, and few ids stay idle: the look that is set for its timeout
            # finds out (`_expire`).
            return
        is_child = txn.parent_id is not None
        term = expire.term_of(
            txn,
            self._lifetimes,
            self._parent_of(txn) if is_child else None,
            self._newest_of(txn) if is_child else None,
        )
        if term is None or (known is not None and known[0] == term.due_ms):
            return
        # Read only for a deadline that moved. What is left of it must not jump with the wall clock.
        steady_ms = self._clock.steady_ms()
        due_steady_ms = steady_ms + term.left_ms(now_ms)
        self._due[txn.transactional_id] = (term.due_ms, due_steady_ms)
        if known is not None and known[1] <= due_steady_ms:
            return  # It comes up when that one does, and then for this one.
        self._deadlines.schedule(txn.transactional_id, due_steady_ms)
        if not self._is_paused:
            self._alarm.set(due_steady_ms, steady_ms)

    def forget(self, transactional_id: str) -> None:
        """Another node looks at the id from now on."""
        self._due.pop(transactional_id, None)

    def pause(self) -> None:
        """Decide nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Decide what is due, from here on."""
        self._is_paused = False
        self._alarm.set(self._deadlines.next_ms(), self._clock.steady_ms())

    def stop(self) -> None:
        """Decide nothing any more, also where the ends that are under way change an id."""
        self.pause()
        self._alarm.cancel()

    def expire_due(self) -> None:
        """Decide for ids whose deadline may have come, the oldest first, some in each turn."""
        self._alarm.cancel()
        steady_ms = self._clock.steady_ms()
        for transactional_id in self._deadlines.take_due(steady_ms, _SLICE):
            if transactional_id not in self._due:
                continue  # forgotten meanwhile
            due_ms, due_steady_ms = self._due[transactional_id]
            if due_steady_ms > steady_ms:
                self._deadlines.schedule(transactional_id, due_steady_ms)
            else:
                del self._due[transactional_id]
                try:
                    self._expire(transactional_id, due_ms)
                except CatalogUnavailable:
                    # The epochs of its producer id are used up, and new ids are in the catalog.
                    again_ms = steady_ms + _AGAIN_MS
                    self._due[transactional_id] = due_ms, again_ms
                    self._deadlines.schedule(transactional_id, again_ms)
        self._alarm.set(self._deadlines.next_ms(), steady_ms)

    def _expire(self, transactional_id: str, due_ms: int) -> None:
        """Decide for an id whose time has passed, also where the wall clock was put back."""
        now_ms = max(self._clock.now_ms(), due_ms)
        before = self._find(transactional_id)
        if before is not None and before.state in ENDED and before.parent_id is None:
            term = expire.term_of(before, self._lifetimes)
            if term is not None and term.due_ms != due_ms:
                # The look was for the timeout of the transaction that has ended since. The idle
                # time counts from here, whatever the wall clock says by now.
                self.schedule(before, before.updated_at_ms)
                return
        decision = self._submit(
            transactional_id,
            lambda txn, fresh_producer_id: expire.expire(
                txn,
                self._lifetimes,
                now_ms,
                parent=self._parent_of(txn),
                newest=self._newest_of(txn),
                fresh_producer_id=fresh_producer_id,
            ),
            now_ms,
        )
        after = self._find(transactional_id)
        if after is None:
            self._due.pop(transactional_id, None)  # It is forgotten.
            return
        self.schedule(after, now_ms)
        is_aborted = decision.records and decision.records[0].state is State.PREPARE_ABORT
        if before is None or not is_aborted:
            return  # Nothing was due: an early alarm, or `submit` appended an owed COMPLETE_*.
        if before.state is State.ONGOING:
            self.timed_out += 1
            self._report("transaction timed out", before, now_ms)
        elif before.state is State.VOTED:
            self.votes_expired += 1
            self._report("vote expired", before, now_ms)

    def _report(self, event: str, txn: Txn, now_ms: int) -> None:
        client = self._clients.of(txn.transactional_id)
        _log.warning(
            event,
            transactional_id=txn.transactional_id,
            txn_id=str(txn.txn_id),
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            client_id=client.client_id,
            client_address=client.client_address,
            partitions=len(txn.partitions),
            open_ms=now_ms - txn.started_at_ms,
            timeout_ms=txn.timeout_ms,
        )
