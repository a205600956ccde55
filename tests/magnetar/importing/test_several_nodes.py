"""`magnetar import` into the directory of several nodes."""

from __future__ import annotations

import uuid
from pathlib import Path

from magnetar.config.load import Given, load
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere, Placement
from magnetar.storage.placing import placed
from tests.logstore.partitions import batch_of
from tests.magnetar.importing.conftest import ORDERS, SEGMENT, at, contents, run


def start_nodes(data_dir: Path, count: int) -> None:
    """Place the partitions for nodes 0 and up, as their start does."""
    given = {"log.dirs": str(data_dir), "node.id": "0", "durability": "page-cache"}
    config = load([Given(name, value, "test") for name, value in given.items()]).config
    with placed(data_dir, config, range(count)):
        pass


def test_several_nodes_get_the_topics_beside_those_that_they_have(
    source: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    start_nodes(data, 3)
    catalog = Catalog(data)
    placement = Placement(0, range(3))
    mine = uuid.UUID(int=3)
    given = tuple(Elsewhere(node_id, 0) for node_id in (2, 2))
    catalog.add_topic(TopicRow(mine, "mine", 2, 1, False, {}, given))
    catalog.close()
    result = run(source, "--data-dir", data, "--json")
    assert result.exit_code == 0, result.output
    start_nodes(data, 3)
    wanted, _ = placement.of_new(ORDERS, 0, 2)
    assert len({*wanted}) == 2
    for index, node_id in enumerate(wanted):
        moved = data / "nodes" / str(node_id) / f"orders-{index}"
        assert contents(moved.parent)[f"orders-{index}/{SEGMENT.format(0)}"] == at(
            0, batch_of(b"a")
        )
        checkpoint = (moved.parent / "recovery-point-offset-checkpoint").read_text()
        assert f"orders {index} {2 - index}" in checkpoint.splitlines()
    catalog = Catalog(data)
    leaders = {row.name: [each.node_id for each in row.leaders] for row in catalog.topics()}
    catalog.close()
    # No other topic has new leaders by that.
    assert (leaders["orders"], leaders["mine"]) == ([*wanted], [2, 2])
    again = run(source, "--data-dir", data)
    assert "orders: imported before" in again.stdout


def test_what_lies_with_a_node_is_not_replaced(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    start_nodes(data, 2)
    (data / "nodes" / "1" / "orders-1").mkdir()
    refused = run(source, "--data-dir", data)
    assert refused.exit_code != 0
    assert "nodes/1/orders-1 exists, and belongs to no topic" in refused.stderr


def test_the_directory_of_one_node_takes_no_import(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    start_nodes(data, 2)
    refused = run(source, "--data-dir", data / "nodes" / "1")
    assert f"one of several nodes. Name {data}." in refused.stderr
    assert not (data / "nodes" / "1" / "catalog.sqlite").exists()
