"""COMPLETE_*: when it is appended, and how long data of the id's next transaction waits for it.

COMPLETE_* in the log means that nothing of the transaction is open. A commit that is visible
(`commit`) *owes* COMPLETE_*, unless COMPLETE_* was the decision itself:

- Under version 2 it is appended in one batch with the id's next record, or after a short delay, and
  costs no sync of its own.
- Under version 1 it is appended at once, and data of the next transaction waits until it is
  durable. The epoch stays, so that data looks like data of the transaction that ended. Were that
  data on the disk, with PREPARE_* as the coordinator's last record, a restart would give it the
  earlier transaction's marker. See
  docs/decisions/0007-adds-are-answered-before-they-are-durable.md.
- Under version 1 with markers elsewhere it is appended as under version 2. Data on another node
  waits until the next add is durable anyway, and one sync makes both durable.

This module owns the moments. `transaction_store` appends the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from coordinator.decision import Urgency
from coordinator.transactions.commit_plan import MarkerWork, Plan
from coordinator.transactions.metadata import TRANSACTION_VERSION_1
from logstore.partition.log import PartitionLog
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: How long an owed COMPLETE_* may wait for a record that shares its sync. A crash costs a re-drive.
COMPLETION_DELAY_MS = 50
#: COMPLETE_* in one turn of the event loop: a few milliseconds.
_COMPLETED_AT_ONCE = 50


class Completions:
    """The COMPLETE_* that are owed, and those that data must not overtake."""

    def __init__(self, complete: Callable[[str], None]) -> None:
        """`complete` takes an id out of `owed` and appends its COMPLETE_*."""
        self._complete = complete
        #: By transactional id: commits that are visible, and whose COMPLETE_* is to be appended.
        self.owed: dict[str, MarkerWork] = {}
        #: By transactional id: the end offset (exclusive) of a COMPLETE_* of version 1, until it is
        #: known to be durable. Data of an id in here needs `check_data_may_follow`. Not restored by
        #: a restart: what that finds in the log is durable.
        self.completed: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- owed

    def owe(self, work: MarkerWork, plan: Plan) -> None:
        """Append COMPLETE_* of `work`, which `plan` has made visible, once its moment has come."""
        self.owed[work.transactional_id] = work
        loop = asyncio.get_running_loop()
        # With OWN_WITH_DECISION, data of the next transaction on another node waits until its add
        # is durable. COMPLETE_* can wait for that add: one sync makes both durable.
        if work.completion is Urgency.AWAITED and plan is not Plan.OWN_WITH_DECISION:
            # In the next turn, after the answers to the clients whose waiters were just called.
            loop.call_soon(self._complete, work.transactional_id)
        elif self._timer is None:
            self._timer = loop.call_later(COMPLETION_DELAY_MS / 1000, self._complete_some)

    def _complete_some(self) -> None:
        self._timer = None
        for transactional_id in tuple(islice(self.owed, _COMPLETED_AT_ONCE)):
            self._complete(transactional_id)
        if self.owed:
            self._timer = asyncio.get_running_loop().call_later(0, self._complete_some)

    def complete_all(self) -> None:
        """Append every COMPLETE_* that is owed, at once.

        A start does so before healing, which leaves ids in PREPARE_* alone. Such an id may have
        data of its next transaction, whose add was lost in a crash. Healing has to adopt that data
        before a fence: a marker of a later epoch would end it with the earlier outcome.
        """
        for transactional_id in tuple(self.owed):
            self._complete(transactional_id)

    def stop(self) -> None:
        """Append what is owed. Call it after `Commits.stop`: nothing may become owed after this."""
        if self._timer is not None:
            self._timer.cancel()
        self.complete_all()

    # --- appended

    def note(self, work: MarkerWork, end_offset: int) -> None:
        """Remember that COMPLETE_* of `work` is in the log before `end_offset` (exclusive)."""
        for one in (work, *work.votes):
            if one.transaction_version == TRANSACTION_VERSION_1:
                self.completed[one.transactional_id] = end_offset

    async def until_data_may_follow(self, transactional_id: str, log: PartitionLog) -> None:
        """Return when data of the id's next transaction may be appended.

        That is once COMPLETE_* is ordered: then no crash leaves that data without it.
        """
        end_offset = self.completed.get(transactional_id)
        if end_offset is None:
            return
        if not log.ledger.is_ordered(end_offset):
            await log.ordered(end_offset)
        if self.completed.get(transactional_id) == end_offset:
            del self.completed[transactional_id]

    def check_data_may_follow(self, transactional_id: str, log: PartitionLog) -> None:
        """Raise CONCURRENT_TRANSACTIONS where data of the next transaction may not be appended yet.

        The id must be in `completed`. A client that waits for the answer to its AddPartitionsToTxn
        never meets the refusal.
        """
        if not log.ledger.is_ordered(self.completed[transactional_id]):
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{transactional_id}: the end of its last transaction is not durable yet",
            )
        del self.completed[transactional_id]

    # --- ids that go

    def forget(self, transactional_id: str) -> None:
        """Forget an id that has expired, or that another node coordinates."""
        self.owed.pop(transactional_id, None)
        self.completed.pop(transactional_id, None)
