"""A directory whose catalog is gone: the start says once what is lost, and deletes no record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.broker import Broker
from magnetar.checking.run import check_directory
from magnetar.config.load import ConfigError
from magnetar.storage.lost_catalog import is_catalog_lost
from magnetar.storage.placing import placed
from tests.magnetar.conftest import StartBroker
from tests.magnetar.nodes_in_one import NodesInOne

SETTINGS = {"durability": "fsync", "log.retention.hours": "1"}


def lose(data: Path) -> None:
    for path in data.glob("catalog.sqlite*"):
        path.unlink()


def empty(data: Path) -> None:
    lose(data)
    (data / "catalog.sqlite").touch()


def told(capsys: pytest.CaptureFixture[str]) -> int:
    return capsys.readouterr().err.count("the catalog is gone")


def place(data: Path, nodes: NodesInOne, count: int) -> None:
    with placed(data, nodes._config, range(count)):
        pass


async def with_topic(start_broker: StartBroker) -> Broker:
    broker = await start_broker(SETTINGS)
    broker.topics.create("kept", configs={"retention.ms": "-1", "cleanup.policy": "compact"})
    log = broker.topics.partition("kept", 0)
    await log.durable(log.log_end_offset)
    # A partition's directory is made by its first record.
    (broker.data_dir / "kept-0").mkdir(exist_ok=True)
    (broker.data_dir / "kept-0" / f"{0:020}.log").touch()
    await broker.stop()
    return broker


@pytest.mark.parametrize("damage", [lose, empty])
async def test_one_broker_takes_over_and_says_once_what_is_lost(
    damage: Callable[[Path], None], start_broker: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await with_topic(start_broker)
    assert told(capsys) == 0
    damage(before.data_dir)
    found = {each.path: each.severity.value for each in check_directory(before.data_dir, print)}
    assert found["catalog.sqlite"] == "error"
    capsys.readouterr()
    broker = await start_broker(SETTINGS)
    err = capsys.readouterr().err
    assert err.count("the catalog is gone") == 1
    for lost in ("settings of topics", "users", "ACLs"):
        assert lost in err
    assert broker.cluster_id == before.cluster_id
    topic = broker.topics.by_name("kept")
    assert topic is not None
    # By the broker's setting its records would be deleted after an hour.
    assert (topic.settings.retention_ms, topic.settings.retention_bytes) == (-1, -1)
    await broker.stop()
    await (await start_broker(SETTINGS)).stop()
    assert told(capsys) == 0


async def test_a_new_directory_and_one_of_kafka_have_lost_nothing(
    start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_catalog_lost(tmp_path / "data")
    await with_topic(start_broker)
    assert told(capsys) == 0
    empty(tmp_path / "data")
    (tmp_path / "data" / "__cluster_metadata-0").mkdir()
    assert not is_catalog_lost(tmp_path / "data")


@pytest.mark.parametrize("damage", [lose, empty])
async def test_several_nodes_refuse_and_make_no_catalog(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    nodes = NodesInOne(data)
    await nodes.start(2)
    next(iter(nodes.nodes.values())).topics.ensure("kept")
    await nodes.stop()
    (data / "nodes" / "1" / "kept-0").mkdir(exist_ok=True)
    (data / "nodes" / "1" / "kept-0" / f"{0:020}.log").touch()
    damage(data)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no catalog\.sqlite.*without --workers.*users"):
            place(data, nodes, 2)
        # A copy may still be put back.
        assert is_catalog_lost(data)
    assert told(capsys) == 0
    place(data, nodes, 1)
    assert told(capsys) == 1
