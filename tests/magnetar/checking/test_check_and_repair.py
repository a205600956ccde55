"""`magnetar check` finds every damage that it knows, and `magnetar repair` mends it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore.disk.checkpoints import encode_offsets
from logstore.disk.files import lock_file
from logstore.partition.mending import SET_ASIDE
from logstore.segments.attachments import SmallFiles
from logstore.sync.journal import JOURNAL
from magnetar.broker import Broker
from magnetar.cli.main import main
from magnetar.storage.sqlite_database import FILE_NAME
from tests.logstore.partitions import batch_of
from tests.logstore.reading import records_from
from tests.magnetar.checking.damages import DAMAGES, ROUNDS, Damage, logs, make
from tests.magnetar.conftest import crash
from wire.records import BatchHeader, Record, SimpleRecord, build_batch, iterate_batches
from wire.records.header import place

StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was stopped."""
    path = tmp_path_factory.mktemp("stopped") / "data"
    make(path)
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was killed."""
    path = tmp_path_factory.mktemp("killed") / "data"
    make(path, killed=True)
    return path


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged, where `start_broker` has its data."""
    return shutil.copytree(stopped, tmp_path / "data", copy_function=shutil.copy2)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def findings(path: Path) -> list[dict[str, Any]]:
    result = run("check", path, "--json")
    assert result.exit_code in (0, 1), result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == any(each["severity"] != "note" for each in found)
    return found


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


async def read(broker: Broker, topic: str) -> list[bytes]:
    """The values of the plain records of a topic's first partition."""
    log = broker.topics.partition(topic, 0)
    found = records_from(log.reader, log.log_start_offset)
    return [
        item.value or b""
        for _, item in found
        if isinstance(item, Record) and (item.value or b"").startswith(b"plain")
    ]


def test_what_a_stop_leaves_is_clean(stopped: Path) -> None:
    assert len(logs(stopped)) >= 3
    before = contents(stopped)
    assert findings(stopped) == []
    assert run("repair", stopped).exit_code == 0
    assert contents(stopped) == before


async def test_a_log_that_begins_within_a_batch_is_right(
    data: Path, start_broker: StartBroker
) -> None:
    broker = await start_broker({"durability": "fsync", "offsets.topic.num.partitions": "1"})
    log = broker.topics.create("trimmed").local[0]
    log.append(log.check(batch_of(b"a", b"b", b"c"), 1_000_000))
    await log.durable(3)
    await broker.logs.persist_start_offsets([(log, 1)])
    log.advance_start(1)
    await broker.stop()
    assert findings(data) == []
    # Without this file the records are there again.
    (data / "log-start-offset-checkpoint").unlink()
    (found,) = findings(data)
    assert (found["severity"], found["path"]) == ("error", "trimmed-0/leader-epoch-checkpoint")
    assert "records before offset 1 were deleted" in found["problem"]


async def test_a_log_that_a_later_leader_has_emptied_is_right(
    data: Path, start_broker: StartBroker
) -> None:
    settings = {"durability": "fsync", "offsets.topic.num.partitions": "1"}
    broker = await start_broker(settings)
    log = broker.topics.create("emptied").local[0]
    log.append(log.check(batch_of(b"a", b"b", b"c"), 1_000_000))
    await log.durable(3)
    await broker.stop()
    broker = await start_broker(settings)
    log = broker.topics.partition("emptied", 0)
    await broker.logs.persist_start_offsets([(log, 3)])
    log.advance_start(3)
    await broker.stop()
    assert findings(data) == []


async def test_a_snapshot_before_which_compaction_has_been_is_right(
    data: Path, start_broker: StartBroker
) -> None:
    settings = {
        "durability": "fsync",
        "offsets.topic.num.partitions": "1",
        "log.cleaner.backoff.ms": "3600000",
    }
    configs = {"cleanup.policy": "compact", "segment.ms": "1", "file.delete.delay.ms": "0"}
    broker = await start_broker(settings)
    log = broker.topics.create("compacted", configs=configs).local[0]
    # The cleaner notes in the first batch until when its tombstone stays.
    for number, value in enumerate((None, b"")):
        batch = build_batch([SimpleRecord(b"%d" % number, value, 1_000_000 + 10 * number)])
        await log.durable(log.append(log.check(batch, 1_000_000)).end_offset)
    assert await broker.cleaner.clean() == 1
    await broker.stop()
    assert (data / "compacted-0" / f"{1:020d}.state").exists()
    assert findings(data) == []


async def test_a_new_partition_lacks_nothing_after_a_kill(
    data: Path, start_broker: StartBroker
) -> None:
    broker = await start_broker({"durability": "fsync", "offsets.topic.num.partitions": "1"})
    log = broker.topics.create("new").local[0]
    log.append(log.check(batch_of(b"a"), 1_000_000))
    await log.durable(1)
    await crash(broker)
    assert "new-0/leader-epoch-checkpoint" not in {each["path"] for each in findings(data)}


def test_checkpoints_that_kafka_has_made_and_not_written_are_no_damage(
    killed: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    before = findings(data)
    for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        (data / name).write_bytes(b"")
    assert findings(data) == before


def test_a_checkpoint_that_the_disk_cannot_read_is_not_taken_for_an_empty_one(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SmallFiles.read

    def failing(small: SmallFiles, name: str) -> bytes | None:
        if name == "log-start-offset-checkpoint":
            raise OSError(errno.EIO, "a bad sector", name)
        return read(small, name)

    monkeypatch.setattr(SmallFiles, "read", failing)
    (found,) = findings(stopped)
    assert (found["severity"], found["path"]) == ("error", "log-start-offset-checkpoint")


def test_what_a_kill_leaves_is_no_damage(killed: Path) -> None:
    found = findings(killed)
    assert {each["severity"] for each in found} <= {"note"}
    assert ".magnetar-journal" in {each["path"] for each in found}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name.replace(" ", "_"))
async def test_a_damage_is_found_and_mended(
    damage: Damage, data: Path, start_broker: StartBroker
) -> None:
    damage.perform(data)
    before = contents(data)
    found = findings(data)
    assert (damage.severity, damage.remedy) in {
        (each["severity"], each["remedy"]) for each in found if each["path"].endswith(damage.path)
    }, found
    assert run("repair", "--dry-run", data).exit_code == (damage.severity != "note")
    assert contents(data) == before

    assert run("repair", data).exit_code == 0
    assert {each["remedy"] for each in findings(data)} <= {"none"}
    kept = contents(data / SET_ASIDE)
    assert kept or damage.severity == "note"
    assert run("repair", data).exit_code == 0
    assert contents(data / SET_ASIDE) == kept

    broker = await start_broker({"durability": "fsync", "offsets.topic.num.partitions": "1"})
    assert len(await read(broker, "others")) == ROUNDS
    values = await read(broker, "orders")
    whole = {"a lost log": 0, "another topic id": 0}.get(damage.name, ROUNDS // 2)
    assert whole <= len(values) <= ROUNDS
    await broker.stop()
    assert {each["severity"] for each in findings(data)} <= {"note"}


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "snapshot", "txnindex"])
async def test_every_file_of_zeros_is_mended(
    suffix: str, data: Path, start_broker: StartBroker
) -> None:
    for each in (data / "orders-0").glob(f"*.{suffix}"):
        each.write_bytes(bytes(each.stat().st_size))
    assert run("repair", data).exit_code == 0
    assert findings(data) == []
    broker = await start_broker({"durability": "fsync"})
    assert len(await read(broker, "others")) == ROUNDS
    assert broker.topics.partition("orders", 0).log_end_offset


def put_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("orders-0/leader-epoch-checkpoint", put_directory),
        (f"orders-0/{0:020d}.log", put_directory),
        (f"orders-0/{0:020d}.log", link_to_nothing),
        ("recovery-point-offset-checkpoint", put_directory),
    ],
)
def test_what_is_no_file_is_a_finding_that_takes_a_person(
    name: str, damage: Callable[[Path], None], data: Path
) -> None:
    starts = data / "log-start-offset-checkpoint"
    starts.write_bytes(encode_offsets({("orders", 0): 1, ("others", 0): 999}))
    before = starts.read_bytes()
    content = (data / name).read_bytes()
    damage(data / name)
    # Nothing is forgotten of a partition that could not be checked.
    for command in ("check", "repair"):
        result = run(command, data)
        assert result.exit_code == 1, result.output
        assert f"error {name}" in result.stdout
        # The other partition is checked, too.
        assert "others-0 begins at 999" in result.stdout
    assert starts.read_bytes() == before
    (data / name).rmdir() if (data / name).is_dir() else (data / name).unlink()
    (data / name).write_bytes(content)
    assert run("repair", data).exit_code == 0


def test_a_directory_in_use_is_refused(data: Path) -> None:
    release = lock_file(str(data / ".lock"), create=True)
    for command in (["check"], ["repair"], ["repair", "--dry-run"]):
        result = run(*command, data)
        assert result.exit_code == 2
        assert "in use by another process" in result.stderr
    release()
    for name, word in (("check", "found"), ("repair", "left")):
        result = run(name, data)
        assert result.exit_code == 0
        assert not result.stdout
        assert re.fullmatch(rf"[1-9][0-9.]* [kM]B read; {word}: nothing\n", result.stderr)


def test_a_directory_of_a_newer_release_is_left_alone(data: Path) -> None:
    """Its tables may have other names: they are no damage, and nothing is set aside."""
    with closing(sqlite3.connect(data / FILE_NAME)) as database:
        database.execute("ALTER TABLE topics RENAME TO named_otherwise")
        database.execute("PRAGMA user_version = 99")
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for command in (["check"], ["repair"], ["repair", "--dry-run"]):
        result = run(*command, data)
        assert result.exit_code == 2
        assert f"{FILE_NAME} was written by a newer magnetar (schema 99" in result.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("version", "build"), [(1, "an earlier"), (3, "a newer")])
def test_a_directory_whose_journal_only_another_build_reads_is_left_alone(
    killed: Path, tmp_path: Path, version: int, build: str
) -> None:
    """A log may lack what the journal has for it, so nothing can be said of the logs."""
    data = shutil.copytree(killed, tmp_path / "data")
    with (data / JOURNAL).open("r+b") as journal:
        journal.write(b"MGNJ" + version.to_bytes(2, "big"))
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for command in (["check"], ["repair"], ["repair", "--dry-run"]):
        result = run(*command, data)
        assert result.exit_code == 2
        assert f"{JOURNAL}: it was written by {build} build of magnetar" in result.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_directory_of_other_files_is_left_alone(tmp_path: Path) -> None:
    assert run("check", tmp_path).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_snapshots_that_know_of_lost_batches_stay(data: Path) -> None:
    snapshots = sorted((data / "orders-0").glob("*.s*t*"))
    path = logs(data)[0]
    content = bytearray(path.read_bytes())
    # The first transactional batch, behind the plain one.
    position = BatchHeader.parse(content).size_bytes
    content[position + 70] ^= 1
    path.write_bytes(content)
    assert run("repair", data).exit_code == 0
    assert findings(data) == []
    assert sorted((data / "orders-0").glob("*.s*t*")) == snapshots


@pytest.mark.parametrize("byte", [0, 5])
def test_an_offset_that_no_crc_covers_costs_its_own_batch_alone(data: Path, byte: int) -> None:
    """In the last segment, behind which no other begins."""
    path = logs(data)[-1]
    content = bytearray(path.read_bytes())
    before = [header.crc for header, _ in iterate_batches(content)]
    assert len(before) > 1
    content[byte] ^= 1
    path.write_bytes(content)
    assert run("repair", data).exit_code == 0
    after = [header.crc for header, _ in iterate_batches(path.read_bytes())]
    assert after[1:] == before[1:] and before[0] not in after
    assert findings(data) == []


@pytest.mark.parametrize("was_killed", [False, True])
async def test_a_batch_with_a_damaged_leader_epoch_is_kept(
    was_killed: bool, stopped: Path, killed: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    """No CRC covers the epoch. A start serves the batch, so a repair must not take it away."""
    data = shutil.copytree(killed if was_killed else stopped, tmp_path / "data")
    for path in logs(data):
        content = bytearray(path.read_bytes())
        content[12] ^= 0x80  # The sign of the first batch's epoch.
        path.write_bytes(content)
    assert run("repair", data).exit_code == 0
    assert not (data / SET_ASIDE / "orders-0").exists()
    broker = await start_broker({"durability": "fsync", "offsets.topic.num.partitions": "1"})
    assert await read(broker, "orders") == [b"plain-%d" % number for number in range(ROUNDS)]


def test_what_is_set_aside_is_listed(data: Path) -> None:
    path = logs(data)[0]
    original = bytearray(path.read_bytes())
    original[80] ^= 1
    path.write_bytes(original)
    assert run("repair", data).exit_code == 0
    assert (data / SET_ASIDE / "orders-0" / path.name).read_bytes() == original
    listed = (data / SET_ASIDE / "list.txt").read_text()
    assert f"orders-0/{path.name} -> {SET_ASIDE}/orders-0/{path.name}: " in listed


def test_a_transaction_that_hangs_is_named(killed: Path, tmp_path: Path) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    path = logs(data)[-1]
    batch = batch_of(b"x", producer_id=91, epoch=3, sequence=0, transactional=True)
    last = None
    position = 0
    content = path.read_bytes()
    while position < len(content):
        last = BatchHeader.parse(content, position)
        position += last.size_bytes
    assert last is not None
    place(batch, last.next_offset, last.partition_leader_epoch)
    path.write_bytes(content + bytes(batch))
    (found,) = [each for each in findings(data) if "producer 91" in each["problem"]]
    assert found["severity"] == "note"
    assert "unknown to every coordinator: it will be aborted" in found["problem"]


async def test_a_damaged_journal_is_set_aside_and_its_whole_records_kept(
    killed: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    journal = data / ".magnetar-journal"
    content = bytearray(journal.read_bytes())
    content[content.index(b"MGNR") + 50] ^= 1
    journal.write_bytes(content)
    (found,) = [each for each in findings(data) if each["path"] == journal.name]
    assert (found["severity"], found["remedy"]) == ("error", "journal")
    assert run("repair", data).exit_code == 0
    assert findings(data) == []
    assert (data / SET_ASIDE / journal.name).read_bytes() == content
    broker = await start_broker({"durability": "fsync"})
    assert len(await read(broker, "others")) >= ROUNDS - 2


def test_a_directory_that_only_has_a_name_like_a_partitions_is_no_data_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "x-1" / "src").mkdir(parents=True)
    (tmp_path / "x-1" / "README").write_text("not Kafka's")
    ended = run("check", tmp_path)
    assert ended.exit_code == 2 and "is no data directory" in ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["x-1"]


@pytest.mark.parametrize("made", ["stopped", "killed"])
def test_no_file_stays_open(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A directory may have more partitions than a process may have files."""
    data = shutil.copytree(request.getfixturevalue(made), tmp_path / "copy")
    before = set(os.listdir("/proc/self/fd"))
    for command in (["check"], ["repair"], ["check"]):
        assert run(*command, data).exit_code == 0
    for descriptor in set(os.listdir("/proc/self/fd")) - before:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        assert not path.startswith(str(tmp_path)), path
