"""A log that lacks something after a start is named: what a crash cut off, what a disk has lost."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.load import ConfigError
from magnetar.config.topic import TopicConfig
from magnetar.storage.logs import Logs
from tests.logstore.partitions import batch_of

TOPIC_ID = uuid.UUID("10d5dcac-a7bc-43fe-945c-5f371153a5e4")


async def start(path: Path, *, write: int = 0, clean: bool = True) -> int:
    """Open one partition, write `write` batches to it and stop; return where it ends."""
    failures: list[BaseException] = []
    logs = Logs.in_directory(str(path), BrokerConfig(), SystemClock(), failures.append)
    log = logs.open("orders", 0, TOPIC_ID, TopicConfig())
    for _ in range(write):
        await log.durable(log.append(log.check(batch_of(b"x" * 100), 1000)).end_offset)
    end_offset = log.log_end_offset
    await logs.close()
    assert not failures
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    return end_offset


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def active_log(path: Path) -> Path:
    return path / "orders-0" / f"{0:020d}.log"


async def test_a_tail_that_a_crash_left_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await start(tmp_path, write=3, clean=False)
    with active_log(tmp_path).open("ab") as log:
        log.write(bytes(77))
    assert await start(tmp_path) == 3
    (line,) = lines(capsys)
    expected = {"topic": "orders", "partition": 0, "end_offset": 3, "truncated_bytes": 77}
    assert (expected | {"lost_offsets": 0, "level": "warning"}).items() <= line.items()
    assert await start(tmp_path) == 3
    assert lines(capsys) == []


@pytest.mark.parametrize("clean", [True, False])
async def test_what_was_durable_and_is_gone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clean: bool
) -> None:
    await start(tmp_path, write=3, clean=clean)
    log = active_log(tmp_path)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)
    assert await start(tmp_path) == 2
    (line,) = lines(capsys)
    assert {"end_offset": 2, "lost_offsets": 1, "level": "error"}.items() <= line.items()


async def test_a_partition_whose_directory_is_gone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await start(tmp_path, write=3)
    for file in (tmp_path / "orders-0").iterdir():
        file.unlink()
    (tmp_path / "orders-0").rmdir()
    assert await start(tmp_path) == 0
    (line,) = lines(capsys)
    assert {"end_offset": 0, "lost_offsets": 3, "level": "error"}.items() <= line.items()


async def test_a_damaged_journal_is_refused_until_it_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures: list[BaseException] = []
    logs = Logs.in_directory(str(tmp_path), BrokerConfig(), SystemClock(), failures.append)
    log = logs.open("orders", 0, TOPIC_ID, TopicConfig())
    for _ in range(4):
        await log.durable(log.append(log.check(batch_of(b"x" * 100), 1000)).end_offset)
    journal = (tmp_path / ".magnetar-journal").read_bytes()
    await logs.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    damaged = bytearray(journal)
    damaged[journal.index(b"MGNR") + 50] ^= 1
    (tmp_path / ".magnetar-journal").write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"journal\.damage\.accept=true"):
            Logs.in_directory(str(tmp_path), BrokerConfig(), SystemClock(), failures.append)
    accepting = BrokerConfig({"journal.damage.accept": True})
    logs = Logs.in_directory(str(tmp_path), accepting, SystemClock(), failures.append)
    assert logs.open("orders", 0, TOPIC_ID, TopicConfig()).log_end_offset == 4
    await logs.close()
    assert [line["level"] for line in lines(capsys)] == ["info", "error"]


async def test_data_that_is_set_aside_for_its_topic_id_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await start(tmp_path, write=3)
    metadata = tmp_path / "orders-0" / "partition.metadata"
    text = metadata.read_text()
    at = text.index("topic_id: ") + len("topic_id: ")
    metadata.write_text(text[:at] + ("B" if text[at] == "A" else "A") + text[at + 1 :])
    assert await start(tmp_path) == 0
    (line,) = lines(capsys)
    expected = {"topic": "orders", "partition": 0, "level": "error"}
    assert expected.items() <= line.items()
    assert list(tmp_path.glob("orders-0*stray*"))


async def test_where_logs_start_is_lost_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await start(tmp_path, write=3)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(bytes(17))
    assert await start(tmp_path) == 3
    (line,) = lines(capsys)
    assert line["level"] == "error" and line["file"] == "log-start-offset-checkpoint"
    assert await start(tmp_path) == 3
    assert lines(capsys) == []


async def test_an_empty_checkpoint_of_kafkas_is_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Kafka makes the file at its first start, and writes to it a minute later or at its stop.
    await start(tmp_path, write=3)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(b"")
    assert await start(tmp_path) == 3
    assert lines(capsys) == []
