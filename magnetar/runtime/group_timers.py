"""The deadlines of groups, and one alarm, set to the earliest of them.

The coordinator decides which deadlines there are (`ClassicGroup.deadline_ms`, and
`coordinator.groups.consumer.timers`). Nothing polls, and a heartbeat does not move the alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.deadlines import Deadlines
from magnetar.clock import Clock
from magnetar.runtime.alarm import Alarm
from magnetar.runtime.background import Tasks

#: How many groups are looked at in one turn of the event loop, some milliseconds. After a restart,
#: the sessions of all clients that have gone end at the same time.
_SLICE = 16


class GroupTimers:
    """The deadlines of all groups, by group id."""

    def __init__(self, clock: Clock, tasks: Tasks, expire: Callable[[str, int], None]) -> None:
        """`expire` is called with a group whose deadline may have come, and the time in ms."""
        self._clock = clock
        self._expire = expire
        self._deadlines = Deadlines()
        self._is_expiring = False
        # In a task, so that a failure ends the broker like that of any other work.
        self._alarm = Alarm(lambda: tasks.spawn(self.expire_due()))

    def cancel(self) -> None:
        """Expire no member any more."""
        self._alarm.cancel()

    def watch(self, group_id: str, due_ms: int | None, now_ms: int) -> None:
        """Look at the group at `due_ms` or before. None: the group has no deadline.

        Call it after each step that may set a deadline.
        """
        if due_ms is not None:
            self._deadlines.schedule(group_id, due_ms)
            # A running `expire_due` finds this group if it is due. Two of them would take twice the
            # time in each turn.
            if not self._is_expiring:
                self._alarm.set(due_ms, now_ms)

    async def expire_due(self) -> None:
        """Look at every group whose deadline may have come."""
        now_ms = self._clock.steady_ms()
        self._is_expiring = True
        try:
            while due := self._deadlines.take_due(now_ms, _SLICE):
                # Read in each turn: the time for the other members to join begins now.
                turn_ms = self._clock.steady_ms()
                for group_id in due:
                    self._expire(group_id, turn_ms)
                await asyncio.sleep(0)
        finally:
            self._is_expiring = False
        self._alarm.set(self._deadlines.next_ms(), self._clock.steady_ms())
