"""Which id a node of a cluster has: its place keeps it, and no two places share one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import IdInUse
from magnetar.storage.catalog_rows import Presence
from magnetar.storage.node_ids import claim


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(tmp_path, is_shared=True)
    yield opened
    opened.close()


def started(catalog: Catalog, node_id: int, place: str) -> int:
    return catalog.nodes.start(node_id, Presence(place, {}, "", ""))


def test_places_get_the_lowest_new_ids_and_keep_them(catalog: Catalog) -> None:
    assert claim(catalog, "a", 1) == [1]
    assert claim(catalog, "b", 2) == [2, 3]
    assert claim(catalog, "a", 1) == [1]
    assert claim(catalog, "b", 2) == [2, 3]
    # One more than there is room for beside the first.
    assert claim(catalog, "a", 2) == [4, 5]


def test_an_id_that_is_asked_for_is_refused_while_another_place_has_a_lease(
    catalog: Catalog,
) -> None:
    assert claim(catalog, "a", 1, 7) == [7]
    incarnation = started(catalog, 7, "a")
    with pytest.raises(IdInUse, match="node 7 lives at another place, a"):
        claim(catalog, "b", 1, 7)
    with pytest.raises(IdInUse):
        claim(catalog, "b", 2, 6)
    # Of the two ids none was taken.
    assert [row.node_id for row in catalog.nodes.members()] == [7]
    catalog.nodes.end_lease(7, incarnation)
    assert claim(catalog, "b", 1, 7) == [7]
    assert started(catalog, 7, "b") > incarnation


def test_a_claimed_id_is_no_node_that_lives(catalog: Catalog) -> None:
    claim(catalog, "a", 1)
    assert [row.is_live for row in catalog.nodes.members()] == [False]
    started(catalog, 1, "a")
    assert [row.is_live for row in catalog.nodes.members()] == [True]
