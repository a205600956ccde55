"""A node of a cluster that is told to stop while its database is away: it ends soon all the same.

On simulated time: the seconds of these tests are no seconds of a machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leadership import Move
from tests.simulation.clients.topics import create_topics
from tests.simulation.cluster_history import _Cluster
from tests.simulation.world.cluster_machine import ClusterMachine
from tests.simulation.world.entropy import seeded_entropy
from tests.simulation.world.log_lines import Line, recorded_logs
from tests.simulation.world.pace import simulated_pace

#: A lease, and what else a stop waits for.
_STOP_S_MAX = 12.0
_LEFT = "a stop does not wait: other nodes take over what is left, at the end of the lease"


class _Stop(_Cluster):
    """Nodes, of which the first is told to stop at a bad moment."""

    def __init__(self, trouble: Callable[[_Stop, ClusterMachine], None]) -> None:
        super().__init__(3, 0.0)
        self._trouble = trouble
        self.took_s = 0.0

    async def story(self) -> None:
        await self._all(nemesis.revive() for nemesis in self.nemeses)
        await create_topics(self.connect("setup", 0), self.topics)
        await self._until_known()
        machine = self.machines[0]
        self._trouble(self, machine)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        machine.stop()
        while machine.is_alive:
            await asyncio.sleep(0.01)
            self.took_s = loop.time() - began_s
            assert self.took_s < 300, "the node does not stop"

    def lines(self) -> list[Line]:
        """Return what an operator reads of it."""
        entropy = seeded_entropy(self.random_of("entropy"))
        with recorded_logs(self.log), entropy, simulated_pace():
            self.scheduler.run(self.process, self.story())
            self.scheduler.end()
        self.scheduler.graveyard.append(self)
        assert not self.machines[0].failures
        return self.log.warnings()


def _catalogs(machine: ClusterMachine) -> tuple[Any, Any]:
    """Return the catalog as the event loop has it, and as what changes leaders has it."""
    assert machine.broker is not None and machine.broker._cluster is not None
    return machine.broker.catalog, machine.broker._cluster._leaders


def _cut(stop: _Stop, machine: ClusterMachine) -> None:
    """Cut the node off before it begins to hand over."""
    assert machine.store is not None
    machine.store.is_cut = True
    catalog, leaders = _catalogs(machine)
    leaders.begin_to_leave = leaders.hand_over = catalog.nodes.end_lease = _away


def _cut_in_the_middle(stop: _Stop, machine: ClusterMachine) -> None:
    """Cut the node off when partitions are closed here, and led by no other node yet."""
    _, leaders = _catalogs(machine)

    def hand_over(node_id: int, incarnation: int, moves: Sequence[Move]) -> NoReturn:
        assert moves
        _cut(stop, machine)
        _away()

    leaders.hand_over = hand_over


def _catalog_alone(stop: _Stop, machine: ClusterMachine) -> None:
    """Let commits go on, and the catalog not: it waits for a lock, for example."""
    catalog, leaders = _catalogs(machine)
    leaders.hand_over = catalog.nodes.end_lease = _away


def _store_alone(stop: _Stop, machine: ClusterMachine) -> None:
    """Let the catalog answer, and no commit return."""
    assert machine.store is not None
    machine.store.is_cut = True


def _away(*_: object) -> NoReturn:
    raise CatalogUnavailable("no answer within 2 s")


@pytest.mark.parametrize(
    ("trouble", "seconds_max"),
    [
        (_cut, _STOP_S_MAX),
        (_cut_in_the_middle, _STOP_S_MAX),
        (_store_alone, _STOP_S_MAX),
        (_catalog_alone, 60.0),
    ],
)
def test_a_stop_does_not_wait_for_a_database_that_is_away(
    trouble: Callable[[_Stop, ClusterMachine], None], seconds_max: float
) -> None:
    stop = _Stop(trouble)
    lines = stop.lines()
    assert stop.took_s < seconds_max
    left = [line for line in lines if line.event == _LEFT]
    assert len(left) == 1, "told once"
    count = left[0].fields["partitions"]
    assert isinstance(count, int) and count > 0
    asked = [line for line in lines if line.event == "the catalog is asked until it answers"]
    assert len(asked) <= 1


def test_a_stop_hands_everything_over_where_the_database_answers() -> None:
    stop = _Stop(lambda stop, machine: None)
    assert _LEFT not in [line.event for line in stop.lines()]
    assert stop.took_s < _STOP_S_MAX
