"""`magnetar check` and `repair` of a directory that several nodes have: one report, one mending."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore.directory.moving import StillDirectory
from logstore.disk.checkpoints import encode_partition_metadata
from logstore.disk.files import DiskFiles
from logstore.partition.log import PartitionLog
from logstore.partition.mending import SET_ASIDE
from magnetar.broker import Broker
from magnetar.cli.main import main
from magnetar.config.load import ConfigError
from magnetar.storage.placing import node_directories, placed
from tests.logstore.partitions import batch_of
from tests.logstore.reading import records_from
from tests.magnetar.nodes_in_one import NodesInOne

BATCHES = 4


class Killed(BaseException):
    """The process ends here."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def findings(path: Path) -> list[dict[str, Any]]:
    result = run("check", path, "--json")
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def append(log: PartitionLog, count: int = BATCHES, **options: Any) -> None:
    for number in range(count):
        batch = batch_of(b"value-%d" % number, sequence=number, **options)
        await log.durable(log.append(log.check(batch, 0)).end_offset)


async def fill(data_dir: Path, nodes: NodesInOne) -> None:
    """Start two nodes, and write some batches into each partition of topic `a`."""
    await nodes.start(2)
    for broker in nodes.nodes.values():
        for log in broker.topics.ensure("a").local:
            await append(log)


@pytest.fixture
def nodes(tmp_path: Path) -> NodesInOne:
    return NodesInOne(tmp_path / "data")


@pytest.fixture
async def data(tmp_path: Path, nodes: NodesInOne) -> Path:
    """The directory of two nodes that were stopped."""
    await fill(tmp_path / "data", nodes)
    await nodes.stop()
    return tmp_path / "data"


def place(data_dir: Path, nodes: NodesInOne, node_ids: list[int]) -> None:
    with placed(data_dir, nodes._config, node_ids):
        pass


def logs_of(data_dir: Path, node_id: int) -> list[Path]:
    return sorted((data_dir / "nodes" / str(node_id)).glob("a-*/*.log"))


def damage(log: Path) -> None:
    """Change a byte of the first batch's records."""
    content = bytearray(log.read_bytes())
    content[70] ^= 0x55
    log.write_bytes(content)


def test_what_a_stop_leaves_is_clean(data: Path) -> None:
    assert findings(data) == []
    assert run("repair", data).exit_code == 0
    assert not (data / SET_ASIDE).exists()


@pytest.mark.parametrize("count", [1, 3])
def test_what_checkpoints_tell_of_partitions_that_moved_is_no_loss(
    data: Path, nodes: NodesInOne, count: int
) -> None:
    place(data, nodes, [*range(count)])
    assert findings(data) == []


async def test_the_damage_of_any_node_is_found_and_mended(data: Path, nodes: NodesInOne) -> None:
    damaged = [logs_of(data, node_id)[0] for node_id in (0, 1)]
    for log in damaged:
        damage(log)
    paths = [str(log.relative_to(data)) for log in damaged]
    found = {each["path"] for each in findings(data) if each["severity"] == "error"}
    assert found == set(paths)
    result = run("repair", data)
    assert result.exit_code == 0, result.output
    assert all(f"error {path}" in result.stdout for path in paths)
    # All that is set aside lies in one place, with one list; a node's directory may go with it.
    assert all((data / SET_ASIDE / path).exists() for path in paths)
    assert not any((each / SET_ASIDE).exists() for each in node_directories(data))
    listed = (data / SET_ASIDE / "list.txt").read_text()
    assert all(f"{path} -> {SET_ASIDE}/{path}" in listed for path in paths)
    assert findings(data) == []

    again = NodesInOne(data)
    await _start(again)
    assert again.log(0).log_end_offset == again.log(1).log_end_offset == BATCHES
    assert len([*records_from(again.log(1).reader, 0)]) == BATCHES - 1
    await again.stop()


@pytest.mark.parametrize("node_id", [0, 1])
def test_a_repair_mends_what_a_partition_that_it_sets_aside_leaves(
    data: Path, node_id: int
) -> None:
    partition = logs_of(data, node_id)[0].parent
    metadata = encode_partition_metadata(uuid.uuid4())
    (partition / "partition.metadata").write_bytes(metadata)
    result = run("repair", data)
    assert result.exit_code == 0, result.output
    assert f"{partition.name} is gone" in result.stdout
    assert findings(data) == []


async def _start(nodes: NodesInOne) -> None:
    """Start two nodes that have topic `a` already."""
    with pytest.raises(Exception, match="exists"):
        await nodes.start(2)


async def test_what_one_node_has_open_another_may_coordinate(
    tmp_path: Path, nodes: NodesInOne
) -> None:
    data = tmp_path / "data"
    await fill(data, nodes)
    await append(nodes.log(1), 1, producer_id=77, epoch=0, transactional=True)
    partition = nodes.partition(1)
    for node_id in (0, 1):
        await nodes.kill(node_id)
    nodes._held.close()
    found = findings(data)
    assert {each["severity"] for each in found} == {"note"}
    told = {each["path"]: each["problem"] for each in found}
    assert "producer 77" in told[f"nodes/1/a-{partition}"]


def test_a_move_that_was_cut_short_is_told(
    data: Path, nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(StillDirectory, "take", killed)
        place(data, nodes, [0, 1, 2])
    found = findings(data)
    assert found and {each["severity"] for each in found} == {"note"}
    assert all("the next start moves it" in each["problem"] for each in found)
    place(data, nodes, [0, 1, 2])
    assert findings(data) == []


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("elsewhere", ["nodes/0", ""])
def test_a_copy_of_a_partition_in_another_directory_is_set_aside(
    data: Path, nodes: NodesInOne, count: int, elsewhere: str
) -> None:
    """Until then no start chooses one of the two, or changes what tells which was used last."""
    partition = logs_of(data, 1)[0].parent
    shutil.copytree(partition, data / elsewhere / partition.name)
    content = logs_of(data, 1)[0].read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"{partition.name} lies in .* magnetar repair"):
            place(data, nodes, [*range(count)])
        (found,) = findings(data)
        assert (found["severity"], found["remedy"]) == ("error", "twin")
        assert found["path"] == f"{elsewhere}/{partition.name}".lstrip("/")
    assert run("repair", data).exit_code == 0
    assert (data / SET_ASIDE / found["path"]).is_dir()
    assert findings(data) == []
    assert logs_of(data, 1)[0].read_bytes() == content
    place(data, nodes, [*range(count)])


def test_copies_of_which_none_is_where_it_belongs_take_a_person(
    data: Path, nodes: NodesInOne
) -> None:
    partition = logs_of(data, 1)[0].parent
    shutil.copytree(partition, data / partition.name)
    shutil.move(partition, data / "nodes" / "0")
    told = [each["path"] for each in findings(data) if each["remedy"] == "by_hand"]
    assert told == [partition.name, f"nodes/0/{partition.name}"]
    assert run("repair", data).exit_code == 1
    with pytest.raises(ConfigError, match=f"{partition.name} lies in"):
        place(data, nodes, [0, 1])
    shutil.rmtree(data / partition.name)
    place(data, nodes, [0, 1])
    assert run("repair", data).exit_code == 0
    assert findings(data) == []


@pytest.mark.parametrize("empty", ["nodes/0", "nodes/1"])
def test_an_empty_directory_of_a_partition_costs_the_other_one_nothing(
    data: Path, nodes: NodesInOne, empty: str
) -> None:
    """A start that moved one over the other wrote other checkpoints before it failed."""
    partition = logs_of(data, 1)[0].parent
    if empty == "nodes/1":
        shutil.move(partition, data / "nodes" / "0")
    (data / empty / partition.name).mkdir()
    before = checkpoints(data)
    with pytest.raises(ConfigError, match=f"{partition.name} lies in"):
        place(data, nodes, [0, 1])
    assert checkpoints(data) == before
    assert "error" in {each["severity"] for each in findings(data)}


def checkpoints(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*-checkpoint")}


async def test_copies_of_what_a_new_catalog_does_not_know_are_refused(
    data: Path, nodes: NodesInOne
) -> None:
    partition = logs_of(data, 1)[0].parent
    shutil.copytree(partition, data / "nodes" / "0" / partition.name)
    for path in data.glob("catalog.sqlite*"):
        path.unlink()
    before = checkpoints(data)
    with pytest.raises(ConfigError, match=f"{partition.name} lies in"):
        place(data, nodes, [0])
    assert checkpoints(data) == before
    told = [each["path"] for each in findings(data) if each["remedy"] == "by_hand"]
    assert told == [f"nodes/{node_id}/{partition.name}" for node_id in (0, 1)]
    shutil.rmtree(data / "nodes" / "0" / partition.name)
    place(data, nodes, [0])


async def test_a_lost_catalog_is_mended_by_one_node(data: Path, nodes: NodesInOne) -> None:
    for path in data.glob("catalog.sqlite-*"):
        path.unlink()
    (data / "catalog.sqlite").write_bytes(b"no catalog" * 1000)
    assert ("error", "catalog") in {(each["severity"], each["remedy"]) for each in findings(data)}
    assert run("repair", data).exit_code == 0
    place(data, nodes, [0])
    broker = Broker(nodes._config, on_failure=nodes.failures.append)
    await broker.start()
    ends = [log.log_end_offset for log in broker.topics.ensure("a").local]
    await broker.stop()
    assert ends == [BATCHES] * 4 and not nodes.failures


def test_the_directory_of_one_node_is_not_checked_alone(data: Path) -> None:
    for command in ("check", "repair"):
        result = run(command, data / "nodes" / "1")
        assert result.exit_code == 2
        assert f"one of several nodes. Name {data}." in result.stderr


def test_a_data_directory_may_lie_below_one_that_is_called_nodes(tmp_path: Path) -> None:
    data = tmp_path / "nodes" / "1"
    result = CliRunner().invoke(
        main, ["users", "add", "ada", "--password-file", "-", "--data-dir", str(data)], input="pw"
    )
    assert result.exit_code == 0, result.output
    assert findings(data) == []


def test_a_node_that_still_runs_is_left_alone(data: Path) -> None:
    files = DiskFiles(str(data))
    held = StillDirectory(files, str(data / "nodes" / "1"))
    result = run("check", data)
    held.release()
    files.close()
    assert result.exit_code == 2
    assert "in use" in result.stderr and "nodes/1" in result.stderr
