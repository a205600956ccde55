"""The moments of a transaction's end in which a broker can be made to crash.

Those of single requests are in `magnetar.faults.handlers`: these two lie inside of the commit, and
come for a transaction that timed out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.remembered_holds import RememberedHolds
from magnetar.faults.rules import DECIDED, MARKING
from magnetar.runtime.group_shards import GroupShards
from magnetar.runtime.participants import AppendedMarker, LeftMarker, LocalParticipants
from magnetar.runtime.turns import Turns
from magnetar.storage.topics import Topics


class CrashingParticipants(LocalParticipants):
    """Markers on their way to the partitions, and the broker may crash on it."""

    def __init__(
        self,
        topics: Topics,
        groups: GroupShards,
        turns: Turns,
        held: RememberedHolds | None,
        reached: Callable[[str, Set[str]], None],
    ) -> None:
        """`reached` is called at each point, with the transactional ids; it may not return."""
        super().__init__(topics, groups, turns, held)
        self._reached = reached

    def append(
        self,
        works: Iterable[MarkerWork],
        part: Part,
        coordinator_epoch: int,
        now_ms: int,
        left: list[LeftMarker],
    ) -> Iterator[Sequence[AppendedMarker]]:
        works = tuple(works)
        self._reached(MARKING, {work.transactional_id for work in works})
        return super().append(works, part, coordinator_epoch, now_ms, left)

    # The commit asks for one of these once its decision is durable, or for both.

    def are_durable(self, markers: Sequence[AppendedMarker]) -> bool:
        self._reached(DECIDED, {work.transactional_id for work, *_ in markers})
        return super().are_durable(markers)

    async def durable(self, markers: Sequence[AppendedMarker]) -> None:
        self._reached(DECIDED, {work.transactional_id for work, *_ in markers})
        await super().durable(markers)
