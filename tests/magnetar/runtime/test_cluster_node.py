"""What a node of a cluster does about the others, again where the catalog did not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from magnetar.config.broker import BrokerConfig
from magnetar.runtime.background import Tasks
from magnetar.runtime.cluster_node import ClusterNode
from magnetar.runtime.members import Joining, Members
from magnetar.storage.catalog_rows import NodeRow, Presence
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.leaders import Placement


class Leadership:
    """Evens out, where the catalog answers."""

    def __init__(self) -> None:
        self.is_away = True
        self.evened: list[set[int]] = []

    async def even_out(self, live: Collection[int]) -> int:
        self.evened.append({*live})
        if self.is_away:
            raise CatalogUnavailable("away")
        return 0

    async def drain(self, live: Collection[int]) -> int:
        return await self.even_out(live)

    def misplaced(self, live: Collection[int]) -> bool:
        return False


class Watch:
    steady_s = 0.0
    version = 7


def no_catalog() -> Any:
    raise AssertionError("nothing asks for the catalog")


def node_beside_another(leadership: Leadership, failures: list[BaseException]) -> ClusterNode:
    members, watch = Members(), Watch()
    joining = Joining(members, ("127.0.0.1", 1), "place", no_catalog)
    node = ClusterNode(joining, BrokerConfig({}), Placement(1, [1], moves=True))
    parts: dict[str, Any] = {"_leadership": leadership, "_watch": watch, "_changes": watch}
    for name, part in {**parts, "_tasks": Tasks(failures.append)}.items():
        setattr(node, name, part)
    members.see([NodeRow(each, each, True, Presence("", {}, "", "")) for each in (1, 2)])
    return node


async def test_a_node_stops_also_where_the_catalog_is_away() -> None:
    leadership, failures = Leadership(), list[BaseException]()
    await node_beside_another(leadership, failures).drain()
    assert leadership.evened == [{1, 2}]
    assert not failures


async def test_a_node_that_joins_while_the_catalog_is_away_gets_its_share_later() -> None:
    leadership, failures = Leadership(), list[BaseException]()
    node = node_beside_another(leadership, failures)

    async def look() -> None:
        await node._on_seen(Watch.version)
        for _ in range(5):
            await asyncio.sleep(0)

    await look()
    leadership.is_away = False
    await look()
    await look()
    assert leadership.evened == [{1, 2}, {1, 2}]
    assert not failures
