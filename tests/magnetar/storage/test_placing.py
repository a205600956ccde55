"""Partitions placed for another number of nodes: nothing is lost, at whatever step it ends."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.directory.log_offsets import LogOffsets
from logstore.directory.moving import StillDirectory
from logstore.disk.checkpoints import (
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_offsets,
)
from logstore.disk.files import DiskFiles
from magnetar.broker import Broker
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError, Given, load
from magnetar.dumping.directory import files_of
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import CatalogNodes
from magnetar.storage.placing import await_former_nodes, has_nodes, node_directories, placed
from tests.logstore.partitions import batch_of
from tests.magnetar.nodes_in_one import NodesInOne

RECORDS = 6


class Killed(BaseException):
    """The process ends here."""


def config_of(data_dir: Path) -> BrokerConfig:
    values = {
        "log.dirs": str(data_dir),
        "node.id": "0",
        "durability": "page-cache",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
    }
    return load([Given(name, value, "test") for name, value in values.items()]).config


def place(data_dir: Path, count: int) -> None:
    with placed(data_dir, config_of(data_dir), range(count)):
        pass


def where(data_dir: Path) -> dict[str, str]:
    """Return the directory of each partition of topic `a`, by its path below DATA."""
    found: dict[str, str] = {}
    for directory in (data_dir, *node_directories(data_dir)):
        for each in directory.glob("a-*"):
            assert each.name not in found, f"{each.name} lies in two places"
            found[each.name] = str(directory.relative_to(data_dir))
    return found


def told(data_dir: Path) -> dict[str, str]:
    """Return the directories whose checkpoints tell of each partition of topic `a`."""
    found: dict[str, str] = {}
    for directory in (data_dir, *node_directories(data_dir)):
        for name in (RECOVERY_POINTS, LOG_START_OFFSETS):
            checkpoint = directory / name
            offsets = decode_offsets(checkpoint.read_bytes()) if checkpoint.exists() else {}
            for topic, partition in offsets:
                if topic == "a":
                    place = str(directory.relative_to(data_dir))
                    assert found.setdefault(f"a-{partition}", place) == place
    return found


async def fill(data_dir: Path, *, count: int, stops: bool = True) -> None:
    """Write a record into each partition of topic `a`; the last one has lost its beginning."""
    nodes = NodesInOne(data_dir)
    await nodes.start(count)
    for node in nodes.nodes.values():
        for log in node.topics.ensure("a").local:
            for text in (b"apple", b"pear"):
                checked = log.check(memoryview(bytearray(batch_of(text))), 0)
                await log.durable(log.append(checked).end_offset)
            if log.partition == 0:
                await node.logs.persist_start_offsets([(log, 1)])
                log.advance_start(1)
    if stops:
        await nodes.stop()
    else:
        for node_id in tuple(nodes.nodes):
            await nodes.kill(node_id)
        nodes._held.close()
    assert not nodes.failures


async def read(data_dir: Path, count: int) -> dict[int, tuple[int, int]]:
    """Start so many nodes; return start and end of each partition of `a`, led by exactly one."""
    found: dict[int, tuple[int, int]] = {}
    nodes = NodesInOne(data_dir)
    if count == 1:
        place(data_dir, 1)
        nodes.nodes[0] = Broker(nodes._config, on_failure=nodes.failures.append)
        await nodes.nodes[0].start()
    else:
        await nodes.start(count)
    for node in nodes.nodes.values():
        for log in node.topics.ensure("a").local:
            assert log.partition not in found
            found[log.partition] = log.log_start_offset, log.log_end_offset
    await nodes.stop()
    assert not nodes.failures
    return found


@pytest.fixture(autouse=True)
def one_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic `a` is made once, with six partitions, by the first start."""
    make = NodesInOne.start

    async def start(self: NodesInOne, number: int) -> None:
        create = "magnetar.storage.topics.Topics.create"
        with monkeypatch.context() as patched:
            patched.setattr(create, _ensured)
            await make(self, number)

    monkeypatch.setattr(NodesInOne, "start", start)


def _ensured(self: Any, name: str, *_: object) -> Any:
    found = self.by_name(name)
    return found or _create(self, name, RECORDS)


_create: Callable[..., Any] = __import__(
    "magnetar.storage.topics", fromlist=["Topics"]
).Topics.create

EXPECTED = {0: (1, 2), **{index: (0, 2) for index in range(1, RECORDS)}}


@pytest.mark.parametrize("stops", [True, False])
async def test_partitions_move_whole_with_what_checkpoints_tell_of_them(
    tmp_path: Path, stops: bool
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2, stops=stops)
    assert Counter(where(data_dir).values()) == {"nodes/0": 3, "nodes/1": 3}
    place(data_dir, 1)
    assert Counter(where(data_dir).values()) == {".": 6}
    assert not has_nodes(data_dir)
    place(data_dir, 3)
    assert Counter(where(data_dir).values()) == {"nodes/0": 2, "nodes/1": 2, "nodes/2": 2}
    assert await read(data_dir, 3) == EXPECTED
    # What a checkpoint told of another directory's partition would be taken for the next topic's.
    assert told(data_dir) == where(data_dir)


@pytest.mark.parametrize(("step", "then"), [(step, step % 3 + 1) for step in range(12)])
async def test_a_kill_at_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, then: int
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2, stops=False)
    steps = 0

    def counted(name: str, owner: type[Any]) -> None:
        known = getattr(owner, name)

        def perform(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal steps
            if steps == step:
                raise Killed
            steps += 1
            return known(self, *args, **options)

        patched.setattr(owner, name, perform)

    with monkeypatch.context() as patched:
        for name in ("prepare", "expect", "take"):
            counted(name, StillDirectory)
        counted("place", CatalogNodes)
        counted("rename", DiskFiles)
        try:
            place(data_dir, 3)
        except Killed:
            assert steps == step
    assert len(where(data_dir)) == RECORDS
    assert await read(data_dir, then) == EXPECTED
    assert told(data_dir) == where(data_dir)


async def test_a_kill_while_a_deleted_topic_is_removed_gives_the_next_one_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    catalog = Catalog(data_dir)
    (former,) = (row for row in catalog.topics() if row.name == "a")
    catalog.remove_topics([former.id])
    catalog.add_topic(former._replace(id=uuid.uuid4(), leaders=()))
    catalog.close()

    def begun(path: Path | str) -> None:
        (Path(path) / PARTITION_METADATA).unlink()
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(shutil, "rmtree", begun)
        place(data_dir, 2)
    assert set((await read(data_dir, 2)).values()) == {(0, 0)}


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_deleted_topics_are_forgotten_once_no_directory_has_anything_of_them(
    tmp_path: Path, count: int
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    catalog = Catalog(data_dir)
    catalog.remove_topics([row.id for row in catalog.topics() if row.name == "a"])
    place(data_dir, count)
    assert where(data_dir) == {}
    assert catalog.deleted_topics() == set()
    catalog.close()


async def test_the_partitions_of_deleted_topics_go_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the checkpoints for each of n partitions would take n times n lines."""
    data_dir = tmp_path / "data"
    await fill(data_dir, count=1)
    catalog = Catalog(data_dir)
    catalog.remove_topics([row.id for row in catalog.topics() if row.name == "a"])
    catalog.close()
    assert len(where(data_dir)) > 1
    written: list[str] = []
    write = LogOffsets.write

    def noted(offsets: LogOffsets, name: str, *, sync: bool) -> None:
        written.append(name)
        write(offsets, name, sync=sync)

    monkeypatch.setattr(LogOffsets, "write", noted)
    place(data_dir, 1)
    assert sorted(written) == [LOG_START_OFFSETS, RECOVERY_POINTS]


async def test_what_one_node_was_still_deleting_goes_when_several_start(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    place(data_dir, 1)
    broker = Broker(config_of(data_dir))
    await broker.start()
    await broker.topics.deletion.perform([broker.topics.ensure("a")])
    await broker.stop()
    assert [path for path in data_dir.iterdir() if path.name.endswith("-delete")]
    place(data_dir, 2)
    assert not [path for path in data_dir.iterdir() if path.name.endswith("-delete")]


async def test_a_start_with_the_same_nodes_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    monkeypatch.setattr(StillDirectory, "prepare", None)
    monkeypatch.setattr(CatalogNodes, "place", None)
    place(data_dir, 2)


def lay_log(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").touch()


@pytest.mark.parametrize("place_of", [".", "nodes/1"])
async def test_what_the_catalog_does_not_know_is_not_passed_over(
    tmp_path: Path, place_of: str
) -> None:
    data_dir = tmp_path / "data"
    lay_log(data_dir / place_of / "stray-0")
    (data_dir / place_of / "backup-1").mkdir()
    with pytest.raises(ConfigError, match=r"stray-0.*without --workers"):
        place(data_dir, 2)
    place(data_dir, 1)
    assert (data_dir / "stray-0").is_dir()


async def test_without_a_catalog_one_node_takes_over_what_several_had(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    for path in data_dir.glob("catalog.sqlite*"):
        path.unlink()
    with pytest.raises(ConfigError, match="without --workers"):
        place(data_dir, 2)
    assert await read(data_dir, 1) == EXPECTED
    assert await read(data_dir, 2) == EXPECTED


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with (
        placed(data_dir, config_of(data_dir), [0, 1]),
        pytest.raises(ConfigError, match="in use"),
    ):
        place(data_dir, 2)


async def test_a_node_of_another_number_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    place(data_dir, 2)
    with (
        pytest.raises(ConfigError, match=r"node\.id 0, not 7"),
        placed(data_dir, config_of(data_dir), [7, 8]),
    ):
        pass


async def test_no_wait_where_no_former_node_runs(tmp_path: Path) -> None:
    place(tmp_path / "data", 2)
    await_former_nodes(tmp_path / "data")
    await_former_nodes(tmp_path / "missing")


async def test_a_dump_shows_the_files_of_all_nodes(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    await fill(data_dir, count=2)
    shown = {path.parent.name for path in files_of(data_dir) if path.suffix == ".log"}
    assert {name for name in shown if name.startswith("a-")} == {f"a-{n}" for n in range(RECORDS)}
