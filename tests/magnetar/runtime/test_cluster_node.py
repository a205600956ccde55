"""What a node of a cluster does about the others, again where the catalog did not answer."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.peers.addresses import SOCKET_NAME, bind_local
from magnetar.runtime import cluster_node
from magnetar.runtime.background import Tasks
from magnetar.runtime.cluster_members import ClusterMembers, Joining
from magnetar.runtime.cluster_node import ClusterNode
from magnetar.runtime.leader_changes import Excess
from magnetar.runtime.leader_changes import LeaderChanges as RealLeaderChanges
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.peer_messages import CatalogChangedRequest
from magnetar.runtime.peers import PeerUnreachable
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.catalog_rows import NodeRow, Presence, TopicRow
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Elsewhere, Placement
from magnetar.storage.logs import Logs as RealLogs
from tests.magnetar.conftest import StartBroker


class LeaderChanges:
    """Evens out, where the catalog answers."""

    def __init__(self) -> None:
        self.is_away = True
        self.evened: list[set[int]] = []
        #: What this node has to give at the next times.
        self.excess: list[int] = []
        #: What others have to give.
        self.others = 0
        #: Whether this node leads what another one is assigned to lead.
        self.is_misplaced = False
        self.preferred: list[set[int]] = []

    async def even_out(self, live: Collection[int]) -> Excess:
        self.evened.append({*live})
        if self.is_away:
            raise CatalogUnavailable("away")
        return Excess(self.excess.pop(0) if self.excess else 0, self.others)

    async def drain(self, live: Collection[int]) -> int:
        return sum(await self.even_out(live))

    led_count = 3

    def misplaced(self, live: Collection[int]) -> bool:
        return self.is_misplaced

    async def prefer(self, live: Collection[int]) -> int:
        self.preferred.append({*live})
        return 1


class Logs:
    away = ""

    async def bucket_away(self) -> str:
        return self.away

    async def in_time(self, work: Coroutine[None, None, object], bound_s: float) -> bool:
        await work
        return True


class Watch:
    steady_s = 0.0
    version = 7

    async def catch_up(self) -> int:
        raise CatalogUnavailable("away")


def no_catalog() -> Any:
    raise AssertionError("nothing asks for the catalog")


def first_node() -> ClusterNode:
    joining = Joining(ClusterMembers(), ("127.0.0.1", 1), "place", no_catalog)
    return ClusterNode(joining, BrokerConfig({}), Placement(1, [1], moves=True))


def node_beside_another(
    leader_changes: LeaderChanges, failures: list[BaseException]
) -> ClusterNode:
    node = first_node()
    prepare(node, leader_changes, failures)
    see(node, (1, 2))
    return node


def see(node: ClusterNode, incarnations: Sequence[int]) -> None:
    """Let the catalog say that nodes 1, 2 and so on live, of these incarnations."""
    presence = Presence("", {}, "", "")
    node.members.see(NodeRow(*each, True, presence) for each in enumerate(incarnations, 1))


def prepare(
    node: ClusterNode, leader_changes: LeaderChanges, failures: list[BaseException]
) -> None:
    watch = Watch()
    parts: dict[str, Any] = {
        "_leader_changes": leader_changes,
        "_watch": watch,
        "_changes": watch,
        "_logs": Logs(),
    }
    for name, part in {**parts, "_tasks": Tasks(failures.append)}.items():
        setattr(node, name, part)


async def look(node: ClusterNode) -> None:
    await node._on_seen(Watch.version)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_node_stops_also_where_the_catalog_is_away() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    await node_beside_another(leader_changes, failures).drain()
    assert leader_changes.evened == [{1, 2}]
    assert not failures


async def test_a_node_that_joins_while_the_catalog_is_away_gets_its_share_later() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    node = node_beside_another(leader_changes, failures)
    await look(node)
    leader_changes.is_away = False
    await look(node)
    await look(node)
    assert leader_changes.evened == [{1, 2}, {1, 2}]
    assert not failures


async def test_a_node_that_joins_as_the_catalog_goes_away_gets_its_share_later() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    node = node_beside_another(leader_changes, failures)
    with pytest.raises(CatalogUnavailable):
        await node._on_seen(Watch.version + 1)
    await look(node)
    assert leader_changes.evened == [{1, 2}]
    assert not failures


async def test_a_catalog_that_takes_no_changes_for_long_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    node = node_beside_another(leader_changes, failures)

    async def told_in_three_looks() -> int:
        for _ in range(3):
            await look(node)
        return capsys.readouterr().err.count("the leaders stay as they are")

    assert await told_in_three_looks() == 1
    leader_changes.is_away, leader_changes.excess = False, [1, 1, 1]
    assert await told_in_three_looks() == 0
    leader_changes.is_away = True
    assert await told_in_three_looks() == 1
    assert not failures


async def test_shares_are_looked_at_until_nothing_is_left_to_give() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    leader_changes.excess = [5, 1]
    node = node_beside_another(leader_changes, failures)
    for _ in range(5):
        await look(node)
    assert leader_changes.evened == [{1, 2}] * 3
    assert not failures


async def test_what_others_do_not_give_is_looked_at_again_when_the_catalog_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node cannot give a partition whose object is missing, for hours or days."""
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away, leader_changes.others = False, 1
    node = node_beside_another(leader_changes, failures)
    for _ in range(5):
        await look(node)
    assert len(leader_changes.evened) == 1
    monkeypatch.setattr(Watch, "version", 8)
    for _ in range(5):
        await look(node)
    assert len(leader_changes.evened) == 2
    see(node, (1, 2, 3))
    for _ in range(5):
        await look(node)
    assert leader_changes.evened[2:] == [{1, 2, 3}]
    # What this node cannot give yet may be there at any moment.
    leader_changes.excess = [1, 1]
    monkeypatch.setattr(Watch, "version", 9)
    for _ in range(5):
        await look(node)
    assert leader_changes.evened[3:] == [{1, 2, 3}] * 3
    leader_changes.others = 0
    monkeypatch.setattr(Watch, "version", 10)
    for _ in range(5):
        await look(node)
    assert leader_changes.evened[6:] == [{1, 2, 3}]
    assert not failures


async def test_assigned_partitions_are_given_while_others_do_not_give_theirs() -> None:
    """A partition may be open long after the catalog has changed, and is given then."""
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away, leader_changes.others = False, 1
    node = node_beside_another(leader_changes, failures)
    for _ in range(2):
        await look(node)
    leader_changes.is_misplaced = True
    await look(node)
    assert leader_changes.preferred == [{1, 2}]
    assert len(leader_changes.evened) == 1
    assert not failures


async def test_a_node_that_starts_last_gives_what_it_leads_beyond_its_share(tmp_path: Path) -> None:
    """The others have seen it join, and have nothing to give."""
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    node = first_node()
    with closing(Catalog(tmp_path, is_shared=True)) as catalog:
        catalog.nodes.start(2, Presence("elsewhere", {}, "", ""))
        await node.join(catalog, [])
    prepare(node, leader_changes, failures)
    for _ in range(3):
        await look(node)
    assert leader_changes.evened == [{1, 2}]
    assert not failures


async def test_a_node_that_starts_again_between_two_looks_gets_its_share() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    node = node_beside_another(leader_changes, failures)
    await look(node)
    see(node, (1, 3))
    for _ in range(3):
        await look(node)
    assert leader_changes.evened == [{1, 2}] * 2
    assert not failures


async def test_a_node_that_joins_while_the_bucket_is_away_gets_its_share_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    node = node_beside_another(leader_changes, failures)
    monkeypatch.setattr(Logs, "away", "503")
    for _ in range(3):
        await look(node)
    assert leader_changes.evened == []
    monkeypatch.setattr(Logs, "away", "")
    await look(node)
    await look(node)
    assert leader_changes.evened == [{1, 2}]
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "nodes that live",
        "no node is given partitions: the bucket has their newest batches",
    ]
    assert not failures


async def test_a_node_that_stops_gives_nothing_to_one_that_joins_meanwhile() -> None:
    leader_changes, failures = LeaderChanges(), list[BaseException]()
    leader_changes.is_away = False
    node = node_beside_another(leader_changes, failures)
    await node.drain()
    drained = leader_changes.evened.copy()
    await look(node)
    assert leader_changes.evened == drained
    assert not failures


async def test_a_node_knows_of_one_that_began_during_its_start_before_it_serves(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    def away() -> Any:
        raise CatalogUnavailable("no look at the catalog is over yet")

    def open_storage(
        config: BrokerConfig, clock: Clock, fail: Callable[[BaseException], None]
    ) -> tuple[RealLogs, Catalog]:
        return RealLogs.in_directory("nowhere", config, clock, fail), Catalog(
            tmp_path, is_shared=True
        )

    def begin_another(*parts: Any) -> LocalParticipants:
        with closing(Catalog(tmp_path, is_shared=True)) as catalog:
            catalog.nodes.start(2, Presence("elsewhere", {}, "", ""))
        return LocalParticipants(*parts)

    (tmp_path / "1").mkdir()  # For the socket that peers reach it by.
    broker = await start_broker(
        {"node.id": "1"},
        open_storage=open_storage,
        make_participants=begin_another,
        joining=Joining(ClusterMembers(), ("127.0.0.1", 1), "place", away),
    )
    assert broker.nodes.ids == (1, 2)


async def test_no_answer_is_waited_for_once_the_lease_of_its_node_has_ended(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """The node hangs: it takes connections, and says nothing."""

    def away() -> Any:
        raise CatalogUnavailable("only what other nodes change is read")

    def open_storage(
        config: BrokerConfig, clock: Clock, fail: Callable[[BaseException], None]
    ) -> tuple[RealLogs, Catalog]:
        logs = RealLogs.in_directory("nowhere", config, clock, fail)
        return logs, Catalog(tmp_path, is_shared=True)

    for node_id in (1, 2):
        (tmp_path / str(node_id)).mkdir()
    with (
        closing(bind_local(tmp_path / "2", SOCKET_NAME)),
        closing(Catalog(tmp_path, is_shared=True)) as catalog,
    ):
        incarnation = catalog.nodes.start(2, Presence("elsewhere", {}, "", ""))
        broker = await start_broker(
            {"node.id": "1"},
            open_storage=open_storage,
            joining=Joining(ClusterMembers(), ("127.0.0.1", 1), "place", away),
        )
        assert broker.peers is not None
        call = broker.peers.call(2, CatalogChangedRequest(version=0), 0)
        await broker.nodes.see_changes()
        assert not call.done()
        catalog.nodes.end_lease(2, incarnation)
        await broker.nodes.see_changes()
        with pytest.raises(PeerUnreachable, match="given up"):
            await call


def with_nodes(directory: Path, nodes: type[CatalogNodes]) -> Catalog:
    """Return the catalog of a directory, with another part for its nodes."""
    catalog = Catalog(directory, is_shared=True)
    catalog.nodes = nodes(catalog.database, catalog.changes)
    return catalog


async def test_no_read_of_the_event_loop_waits_for_a_take_over(
    tmp_path: Path, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may take as long as a call of the catalog may, and uses another connection."""
    monkeypatch.setattr(cluster_node, "STEADY_S", 0.0)
    taken_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    class OfLeaders(CatalogNodes):
        def take_over(self, node_id: int, incarnation: int) -> int | None:
            fenced = super().take_over(node_id, incarnation)
            if fenced is not None:
                loop.call_soon_threadsafe(taken_over.set)
            return fenced

    class OfTheEventLoop(CatalogNodes):
        def take_over(self, node_id: int, incarnation: int) -> int | None:
            raise AssertionError("reads wait for this connection")

    def open_storage(
        config: BrokerConfig, clock: Clock, fail: Callable[[BaseException], None]
    ) -> tuple[RealLogs, Catalog]:
        logs = RealLogs.in_directory("nowhere", config, clock, fail)
        return logs, with_nodes(tmp_path, OfTheEventLoop)

    def open_catalog() -> Catalog:
        return with_nodes(tmp_path, OfLeaders)

    (tmp_path / "1").mkdir()  # For the socket that peers reach it by.
    with closing(open_catalog()) as catalog:
        dead = catalog.nodes.start(2, Presence("elsewhere", {}, "", ""))
        catalog.add_topic(TopicRow(uuid4(), "a", 1, 1, False, {}, (Elsewhere(2, dead),)))
        catalog.nodes.end_lease(2, dead)
    broker = await start_broker(
        {"node.id": "1"},
        open_storage=open_storage,
        joining=Joining(ClusterMembers(), ("127.0.0.1", 1), "place", open_catalog),
    )
    async with asyncio.timeout(20):
        await taken_over.wait()
    assert broker.catalog.nodes.led_counts().keys() == {1}


async def test_a_node_begins_once_the_catalog_answers_and_says_once_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[bool] = []

    class Away(CatalogNodes):
        def start(self, node_id: int, presence: Presence | None = None) -> int:
            # The outcome of what is not answered is not known: here it has happened.
            begun = super().start(node_id, presence)
            waited.append(node.is_waiting)
            if len(waited) <= 3:
                raise CatalogUnavailable("no answer")
            return begun

    monkeypatch.setattr(cluster_node, "_ASK_AGAIN_S", 0.0)
    node = first_node()
    with closing(with_nodes(tmp_path, Away)) as catalog:
        # Every try that has happened counts as a start.
        assert await node.join(catalog, []) == 3
        assert [(row.node_id, row.incarnation) for row in catalog.nodes.members()] == [(1, 3)]
    assert waited == [False, True, True, True]
    assert not node.is_waiting
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["event"], each["reason"]) for each in told] == [
        ("the start waits for the database", "no answer")
    ]


async def test_a_catalog_that_goes_away_during_a_take_over_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Changes:
        async def see_changes(self) -> int:
            raise CatalogUnavailable("away")

        async def tell_changes(self) -> None:
            raise CatalogUnavailable("away")

    class Fences:
        def begin_to_leave(self, node_id: int, incarnation: int) -> None:
            raise AssertionError("this node stays")

        def take_over(self, node_id: int, incarnation: int) -> int | None:
            return 7 if incarnation == 5 else None

    unheard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    leader_changes = RealLeaderChanges(cast(Any, None), Fences(), Changes(), cast(Any, None))
    with pytest.raises(CatalogUnavailable):
        await leader_changes.take_over(2, 5)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not unheard
    assert "a node was taken over" in capsys.readouterr().err
