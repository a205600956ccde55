"""`magnetar dump`: every kind of file, and where it is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import main
from magnetar.testing import start_broker

SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.index.interval.bytes": "1",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a magnetar that wrote a transaction and offsets and was stopped."""
    path = tmp_path_factory.mktemp("written")
    with start_broker(path, SETTINGS) as broker:
        for arguments, text in (
            (["produce", "orders", "--create", "-K", ":"], "k:v\n"),
            (["produce", "orders", "--transactional-id", "t"], "in a transaction\n"),
            (["produce", "orders", "-H", "h=1"], "last\n"),
            (["consume", "orders", "-g", "readers", "-e"], ""),
        ):
            command = [*arguments, "-b", broker.bootstrap_servers]
            assert CliRunner().invoke(main, command, input=text).exit_code == 0
    yield path


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(written, tmp_path / "copy")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dump", *map(str, arguments)])


def dumped(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_whole_data_directory_is_read(written: Path) -> None:
    lines = dumped(written, "--records")
    kinds = {line["kind"] for line in lines}
    assert {
        "batch",
        "record",
        "index",
        "timeindex",
        "producer",
        "snapshot",
        "leader_epoch",
    } <= kinds
    assert {"partition", "checkpoint", "properties", "clean_shutdown", "topics"} <= kinds
    text = run(written).stdout
    assert "orders-0/00000000000000000000.log" in text
    assert "  batch base_offset=0 last_offset=0 position=0" in text


def test_the_journal_of_a_broker_that_was_killed_says_what_is_whose(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        for _ in range(2):
            command = ["produce", "orders", "--create", "-b", broker.bootstrap_servers]
            assert CliRunner().invoke(main, command, input="a\n").exit_code == 0
        broker.kill()
        (line,) = dumped(tmp_path / ".magnetar-journal")
    assert line["kind"] == "journaled"
    assert line["file"].startswith("orders-")


def test_records_are_shown_where_they_are_wanted(written: Path) -> None:
    segment = written / "orders-0" / "00000000000000000000.log"
    assert {line["kind"] for line in dumped(segment)} == {"batch"}
    records = [line for line in dumped(segment, "--records") if line["kind"] == "record"]
    assert [(line["offset"], line["key"], line["value"]) for line in records] == [
        (0, "k", "v"),
        (1, None, "in a transaction"),
        (3, None, "last"),
    ]
    assert records[-1]["headers"] == [["h", "1"]]
    batches = dumped(segment)
    assert [line.get("marker") for line in batches] == [None, None, "commit", None]
    assert [line["base_offset"] for line in dumped(segment, "--from-offset", "2")] == [2, 3]


def test_internal_topics_are_decoded(written: Path) -> None:
    transactions = [
        line["decoded"]
        for line in dumped(written / "__transaction_state-0")
        if line["kind"] == "record"
    ]
    assert {line["transactional_id"] for line in transactions} == {"t"}
    assert [line["transaction_status"] for line in transactions][-1] == "CompleteCommit"
    assert transactions[-1]["txn_id"]
    groups = [
        line["decoded"]
        for line in dumped(written / "__consumer_offsets-0")
        if line["kind"] == "record"
    ]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for line in groups:
        by_type.setdefault(line["type"], []).append(line)
    assert by_type["OffsetCommit"][-1]["offset"] == 4
    stable = [line for line in by_type["GroupMetadata"] if line.get("members")]
    assert stable[0]["members"][0]["subscription"]["topics"] == ["orders"]
    assigned = stable[0]["members"][0]["assignment"]["assigned_partitions"]
    assert assigned == [{"topic": "orders", "partitions": [0]}]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def damages(path: Path) -> list[tuple[int, str]]:
    result = run(path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["message"].startswith("damaged in")
    lines = map(json.loads, result.stdout.splitlines())
    return [(line["position"], line["reason"]) for line in lines if line["kind"] == "damage"]


def test_a_damaged_segment_says_where(directory: Path) -> None:
    segment = directory / "orders-0" / "00000000000000000000.log"
    second = dumped(segment)[1]["position"]
    flip(segment, second + 70)
    assert damages(segment) == [(second, "the CRC does not match")]
    assert len([line for line in run(segment).stdout.splitlines() if " batch " in line]) == 4


def test_a_torn_segment_says_where(directory: Path) -> None:
    segment = directory / "orders-0" / "00000000000000000000.log"
    last = dumped(segment)[-1]
    segment.write_bytes(segment.read_bytes()[:-5])
    size = last["size_bytes"]
    assert damages(segment) == [(last["position"], f"{size - 5} bytes of a batch of {size}")]
    segment.write_bytes(segment.read_bytes()[: last["position"]] + bytes(100))
    assert damages(segment) == [(last["position"], "zeros where a batch should begin")]


def test_an_old_message_format_is_named(directory: Path) -> None:
    segment = directory / "orders-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[16] = 1
    segment.write_bytes(data)
    assert damages(segment)[0] == (0, "magic 1, only 2 is read")


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        (".index", "no batch begins at that position"),
        (".timeindex", "it does not ascend"),
    ],
)
def test_a_damaged_index_says_where(directory: Path, suffix: str, reason: str) -> None:
    path = directory / "orders-0" / f"00000000000000000000{suffix}"
    assert path.stat().st_size
    if suffix == ".index":
        flip(path, 7)
        assert damages(path)[0] == (0, reason)
    else:
        path.write_bytes(path.read_bytes() * 2)
        assert damages(path)[0][1] == reason
    path.write_bytes(path.read_bytes() + b"x")
    assert damages(path)[-1][1].startswith("1 bytes where an entry has")


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_zeros_of_a_killed_kafka_are_no_damage(directory: Path, suffix: str) -> None:
    path = directory / "orders-0" / f"00000000000000000000{suffix}"
    entries = dumped(path)
    path.write_bytes(path.read_bytes() + bytes(10 << 20))
    assert dumped(path) == entries


@pytest.mark.parametrize("suffix", [".snapshot", ".state"])
def test_a_damaged_snapshot_is_named(directory: Path, suffix: str) -> None:
    path = sorted((directory / "orders-0").glob(f"*{suffix}"))[-1]
    flip(path, path.stat().st_size - 1)
    result = run(path)
    assert result.exit_code == 1
    assert 'damage reason="its CRC is wrong"' in result.stdout


def test_what_is_no_file_of_a_brokers_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    result = run(tmp_path / "notes.txt")
    assert result.exit_code == 2
    assert "is no file of a broker" in result.stderr
    assert run(tmp_path / "nothing").exit_code == 2
    directory = run(tmp_path)
    assert (directory.exit_code, directory.stdout) == (2, "")
    assert "holds no file of a broker" in directory.stderr


def test_names_that_clients_chose_are_shown_with_escapes_and_in_json_as_they_are(
    tmp_path: Path,
) -> None:
    # U+009B is what begins the sequences that a terminal obeys.
    group = "readers\u009b2J\u202e"
    with start_broker(tmp_path, SETTINGS) as broker:
        for arguments in (["produce", "orders", "--create"], ["consume", "orders", "-e"]):
            named = ["-g", group] if arguments[0] == "consume" else []
            command = [*arguments, *named, "-b", broker.bootstrap_servers]
            assert CliRunner().invoke(main, command, input="a\n").exit_code == 0
    segment = tmp_path / "__consumer_offsets-0" / "00000000000000000000.log"
    text = run(segment).stdout
    assert "readers\\x9b2J\\u202e" in text
    assert not {"\u009b", "\u202e"} & {*text}
    found = [json.dumps(line) for line in dumped(segment)]
    assert any(json.dumps(group)[1:-1] in each for each in found)
