"""What a node knows of the others, and what it makes of a catalog that was away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.remote.commit_store import CommitsLost, NodeFenced
from magnetar.runtime import cluster_members as looks
from magnetar.runtime.cluster_members import ClusterMembers, LookedAt, MemberWatch
from magnetar.runtime.known_history import KnownHistory
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.catalog_rows import PEERS, NodeRow, Presence
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.history import History


def presence(port: int) -> Presence:
    endpoints = {"PLAINTEXT": ("a.example", port), PEERS: ("10.0.0.1", port + 1)}
    return Presence("place", endpoints, "r1", "1.0")


class Looks:
    """A watch over a catalog. A test waits for its looks."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(looks, "LOOK_AGAIN_S", 0.001)
        self.catalog = Catalog(directory, is_shared=True)
        self.incarnation = self.catalog.nodes.start(1, presence(9092))
        self.is_away = self.is_away_later = False
        #: The clock of the database.
        self.clock_s: Callable[[], float] = time.monotonic
        monkeypatch.setattr(looks, "read_clock_s", lambda database: self.clock_s())
        self.members = ClusterMembers()
        self.failed: list[BaseException] = []
        self._seen = asyncio.Event()
        own = (1, self.incarnation)
        #: How often commits went to another server, and whether they do so in each look.
        self.recoveries, self.fails_over = 0, False
        looked_at = LookedAt(KnownHistory(directory), self._proof)
        self.watch = MemberWatch(
            lambda: self._open(directory), own, self.members, looked_at, self._on_seen
        )
        self.watch.start(self._fail)

    def _proof(self) -> Callable[[], bool | None]:
        recoveries = self.recoveries
        return lambda: True if recoveries == self.recoveries else None

    def _open(self, directory: Path) -> Catalog:
        looks = self

        class Watched(CatalogNodes):
            def members(self) -> list[NodeRow]:
                if looks.is_away:
                    raise CatalogUnavailable("away")
                looks.recoveries += looks.fails_over
                return super().members()

        catalog = Catalog(directory, is_shared=True)
        catalog.nodes = Watched(catalog.database, catalog.changes)
        return catalog

    async def _on_seen(self, version: int) -> None:
        self._seen.set()
        if self.is_away_later:
            raise CatalogUnavailable("away by now")

    def _fail(self, failure: BaseException) -> None:
        self.failed.append(failure)
        self._seen.set()

    async def look(self) -> None:
        """Return after the next look that the catalog has answered, or that ended the node."""
        self._seen.clear()
        async with asyncio.timeout(10):
            await self._seen.wait()

    async def stop(self) -> None:
        await self.watch.stop()
        self.catalog.close()


async def test_what_is_read_while_the_database_fails_over_is_not_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_in: list[History] = []
    see = KnownHistory.see

    def spied(self: KnownHistory, now: History, proof: Callable[[], bool | None]) -> None:
        taken_in.append(now)
        see(self, now, proof)

    monkeypatch.setattr(KnownHistory, "see", spied)
    world = Looks(tmp_path, monkeypatch)
    world.fails_over = True
    await world.look()
    assert not taken_in
    world.fails_over = False
    await world.look()
    await world.look()
    assert taken_in
    await world.stop()


async def test_nodes_are_reached_while_they_have_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Looks(tmp_path, monkeypatch)
    second = world.catalog.nodes.start(2, presence(9192))
    await world.look()
    await world.look()
    assert world.members.live() == [1, 2]
    assert world.members.reached("PLAINTEXT") == [
        (1, "a.example", 9092, "r1"),
        (2, "a.example", 9192, "r1"),
    ]
    assert world.members.reached("SSL") == []
    assert world.members.peer_address(2) == ("10.0.0.1", 9193)
    world.catalog.nodes.end_lease(2, second)
    await world.look()
    await world.look()
    assert [row.node_id for row in world.members.dead()] == [2]
    assert [each[0] for each in world.members.reached("PLAINTEXT")] == [1]
    await world.stop()


async def test_a_catalog_that_was_away_is_not_steady_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(looks, "_now_s", lambda: now_s)
    world = Looks(tmp_path, monkeypatch)
    world.clock_s = lambda: now_s
    await world.look()
    now_s = 110.0
    await world.look()
    assert world.watch.steady_s == 10.0
    world.is_away = True
    while not world.watch._is_away:
        await asyncio.sleep(0)
    world.is_away = False
    await world.look()
    assert world.watch.steady_s == 0.0
    assert not world.failed
    await world.stop()


@pytest.mark.parametrize("by_s", [3600.0, -3600.0, 5.0])
async def test_a_catalog_whose_clock_was_set_is_not_steady_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    """All leases seem to be over then, until each node has renewed its own."""
    now_s = clock_s = 100.0
    monkeypatch.setattr(looks, "_now_s", lambda: now_s)
    world = Looks(tmp_path, monkeypatch)
    world.clock_s = lambda: clock_s
    await world.look()
    for _ in range(5):
        # It may gain a little on the way.
        now_s, clock_s = now_s + 1.0, clock_s + 1.1
        await world.look()
        await world.look()
    assert world.watch.steady_s == 5.0
    clock_s += by_s
    await world.look()
    await world.look()
    assert world.watch.steady_s == 0.0
    now_s, clock_s = now_s + 1.0, clock_s + 1.0
    await world.look()
    assert world.watch.steady_s == 1.0
    assert not world.failed
    await world.stop()


async def test_a_catalog_that_goes_away_while_its_changes_are_obeyed_ends_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Looks(tmp_path, monkeypatch)
    world.is_away_later = True
    await world.look()
    await world.look()
    assert not world.failed
    # A lease that has ended counts some seconds after the catalog has answered again.
    while not world.watch._is_away:
        await asyncio.sleep(0)
    world.is_away_later = False
    await world.look()
    assert not world.failed
    await world.stop()


async def test_a_node_that_was_started_once_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Looks(tmp_path, monkeypatch)
    await world.look()
    world.catalog.nodes.start(1, presence(9092))
    await world.look()
    while not world.failed:
        await world.look()
    assert isinstance(world.failed[0], NodeFenced)
    await world.stop()


async def test_a_node_whose_database_has_stepped_back_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Looks(tmp_path, monkeypatch)
    world.catalog.nodes.start(2, presence(9192))
    for _ in range(3):
        await world.look()
    # A standby that had not got the start of the other node.
    with world.catalog.database.transaction("lose") as database:
        database.execute("DELETE FROM nodes WHERE node_id = 2")
    while not world.failed:
        await world.look()
    assert isinstance(world.failed[0], CommitsLost)
    assert "start 1 of node 2" in str(world.failed[0])
    await world.stop()


async def test_a_node_whose_start_was_lost_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Looks(tmp_path, monkeypatch)
    with world.catalog.database.transaction("lose") as database:
        database.execute("UPDATE nodes SET incarnation = incarnation - 1")
    while not world.failed:
        await world.look()
    assert isinstance(world.failed[0], CommitsLost)
    await world.stop()
