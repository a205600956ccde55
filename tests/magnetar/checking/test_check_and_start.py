"""What `magnetar check` says of a damaged directory, the next start says too."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from logstore.directory.recovery_points import RecoveryPoints
from logstore.segments.findings import Severity
from magnetar.broker import Broker
from magnetar.checking.run import check_directory, repair_directory
from magnetar.config.load import ConfigError
from tests.magnetar.checking.damages import SETTINGS, TOPIC, write
from tests.magnetar.conftest import crash

StartBroker = Callable[..., Awaitable[Broker]]

#: The events of a start that say that something is lost.
LOSSES = {
    "acknowledged records are gone: the disk has lost them",
    "damaged records of the journal passed over",
    "the first segments of a log are gone, and no deletion of them is known",
}
ROUNDS = 6


def flip(position: int, segment: int = 0) -> Callable[[Path], None]:
    def perform(data: Path) -> None:
        path = sorted((data / "orders-0").glob("*.log"))[segment]
        content = bytearray(path.read_bytes())
        content[position] ^= 0x10
        path.write_bytes(content)

    return perform


def cut(data: Path) -> None:
    path = min((data / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_last(data: Path) -> None:
    max((data / "orders-0").glob("*.log")).write_bytes(b"")


def lose_first_segment(data: Path) -> None:
    min((data / "orders-0").glob("*.log")).unlink()


def lose_segment(data: Path) -> None:
    """The second one."""
    sorted((data / "orders-0").glob("*.log"))[1].unlink()


def lose_partition(data: Path) -> None:
    shutil.rmtree(data / "orders-0")


def lose_journal(data: Path) -> None:
    (data / ".magnetar-journal").unlink()


def nothing(data: Path) -> None:
    """A kill alone."""


@pytest.fixture
async def killed(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The directory of a broker that was killed when its journal had begun a new round, and the
    checkpoint of recovery points was not written yet."""
    monkeypatch.setattr(RecoveryPoints, "_schedule", lambda _: None)
    broker = await start_broker({**SETTINGS, "durability": "fsync"})
    log = broker.topics.create("orders", configs=TOPIC).local[0]
    await write(log, 0, ROUNDS - 1)
    await broker.logs._group_commit.settle()
    await write(log, ROUNDS - 1, ROUNDS)
    await crash(broker)
    monkeypatch.undo()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("damage", "is_loss"),
    [
        (nothing, False),
        (flip(100), True),
        (flip(0), True),
        (flip(100, segment=1), True),
        (cut, True),
        (empty_last, True),
        (lose_first_segment, True),
        (lose_segment, True),
        (lose_partition, True),
        (lose_journal, False),
    ],
    ids=[
        "nothing",
        "a bit of an older segment",
        "a bit of a base offset",
        "a bit of a later segment",
        "half of a segment",
        "the last segment",
        "the first segment",
        "a segment",
        "a partition",
        "the journal",
    ],
)
async def test_both_say_the_same(
    damage: Callable[[Path], None],
    is_loss: bool,
    killed: Path,
    start_broker: StartBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(killed)
    found = list(check_directory(killed, lambda _: None))
    capsys.readouterr()
    broker = await start_broker({**SETTINGS, "durability": "fsync"})
    events = {json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()}
    await broker.stop()
    assert bool(events & LOSSES) is is_loss, events
    assert any(each.severity is Severity.ERROR for each in found) is is_loss, found


async def test_a_lost_first_segment_is_named_once(
    killed: Path, start_broker: StartBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_first_segment(killed)
    first = int(min((killed / "orders-0").glob("*.log")).stem)
    told = []
    for _ in range(2):
        capsys.readouterr()
        broker = await start_broker({**SETTINGS, "durability": "fsync"})
        assert broker.topics.partition("orders", 0).log_start_offset == first
        await crash(broker)
        events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        told.append([each for each in events if each["event"] in LOSSES])
    ((line,), again) = told
    assert (
        line.items()
        >= {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": first - 1}.items()
    )
    assert again == []


async def test_a_directory_of_another_cluster_is_refused_by_both(
    killed: Path, start_broker: StartBroker
) -> None:
    path = killed / "meta.properties"
    text = path.read_text().splitlines()
    path.write_text("\n".join("cluster.id=other" if "cluster.id" in one else one for one in text))
    found = [each for each in check_directory(killed, lambda _: None)]
    assert (Severity.ERROR, "meta.properties") in {each[:2] for each in found}
    with pytest.raises(ConfigError, match=r"cluster\.id other"):
        await start_broker({**SETTINGS, "durability": "fsync"})


@pytest.mark.parametrize("has_catalog", [True, False])
async def test_a_directory_of_a_later_release_is_refused_by_both(
    has_catalog: bool, killed: Path, start_broker: StartBroker
) -> None:
    path = killed / "meta.properties"
    path.write_text(path.read_text().replace("version=1", "version=99"))
    if not has_catalog:
        (killed / "catalog.sqlite").unlink()
    before = {file: file.read_bytes() for file in killed.rglob("*") if file.is_file()}
    found = [each for each in check_directory(killed, lambda _: None)]
    (problem,) = [each.problem for each in found if each.path == "meta.properties"]
    assert "has version 99, and only 0 and 1 are known" in problem
    with pytest.raises(ConfigError, match="version 99.*--data-dir"):
        await start_broker({**SETTINGS, "durability": "fsync"})
    assert {file: file.read_bytes() for file in killed.rglob("*") if file.is_file()} == before


async def test_what_a_check_finds_out_it_changes_nowhere(killed: Path) -> None:
    flip(100)(killed)
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    await asyncio.to_thread(lambda: list(check_directory(killed, lambda _: None)))
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before


@pytest.fixture
async def killed_in_page_cache(start_broker: StartBroker, tmp_path: Path) -> Path:
    """The directory of a broker that left the disk to the page cache, and was killed."""
    broker = await start_broker({**SETTINGS, "durability": "page-cache"})
    log = broker.topics.create("orders", configs=TOPIC).local[0]
    await write(log, 0, ROUNDS)
    await crash(broker)
    return tmp_path / "data"


def tear(data: Path) -> None:
    """Leave half of the last batch."""
    path = max((data / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-30])


async def cut_at_start(start_broker: StartBroker, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Return where a start, which is stopped again, has cut a log off."""
    capsys.readouterr()
    broker = await start_broker({**SETTINGS, "durability": "page-cache"})
    await broker.stop()
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [each["end_offset"] for each in events if "log cut off" in each["event"]]


@pytest.mark.parametrize(
    ("damage", "is_told"),
    [
        (flip(100), True),
        (flip(0), True),
        (flip(100, segment=1), True),
        (lose_segment, True),
        (tear, False),
    ],
    ids=["a bit", "a base offset", "a bit of a later segment", "a segment", "a torn end"],
)
async def test_whole_batches_that_a_start_would_cut_off_are_told_and_kept_by_a_repair(
    damage: Callable[[Path], None],
    is_told: bool,
    killed_in_page_cache: Path,
    tmp_path: Path,
    start_broker: StartBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = killed_in_page_cache
    damage(data)
    shutil.copytree(data, tmp_path / "copy")
    found = list(check_directory(data, lambda _: None))
    (cut_offset,) = await cut_at_start(start_broker, capsys)
    told = f"would end the log at offset {cut_offset}, and cut off whole batches behind it, up to"
    errors = [each.problem for each in found if each.severity is Severity.ERROR]
    assert [told in each for each in errors].count(True) == is_told, found
    assert bool(errors) is is_told

    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    assert not repair_directory(data, lambda _: None, lambda _: None)
    assert {each.severity for each in check_directory(data, lambda _: None)} <= {Severity.NOTE}
    assert not await cut_at_start(start_broker, capsys)


@pytest.mark.parametrize("is_noted", [True, False])
async def test_after_a_clean_stop_a_check_forecasts_what_the_start_does(
    is_noted: bool,
    start_broker: StartBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The start trusts the note of the stop while the times of a log's files are as they were."""
    data = tmp_path / "data"
    settings = {**SETTINGS, "durability": "fsync", "log.index.interval.bytes": "4096"}
    broker = await start_broker(settings)
    await write(broker.topics.create("orders").local[0], 0, ROUNDS)
    await broker.stop()
    (log,) = (data / "orders-0").glob("*.log")
    times = log.stat().st_atime_ns, log.stat().st_mtime_ns
    flip(1)(data)  # A base offset, which no CRC covers.
    if is_noted:
        os.utime(log, ns=times)
    found = list(check_directory(data, lambda _: None))
    assert any(each.severity is Severity.ERROR for each in found)
    capsys.readouterr()
    broker = await start_broker(settings)
    events = {json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()}
    assert broker.topics.partition("orders", 0).log_end_offset == (4 * ROUNDS if is_noted else 0)
    assert bool(events & LOSSES) is not is_noted
    assert any("would end the log at offset 0" in each.problem for each in found) is not is_noted
