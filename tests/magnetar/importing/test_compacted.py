"""`magnetar import` of logs that Kafka's cleaner has thinned out: offsets are missing anywhere.

Kafka keeps the last batch of a cleaned log, not that of each of its segments, and may leave a
segment empty.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.disk.checkpoints import encode_offsets
from magnetar.cli.main import main
from magnetar.testing import start_broker
from tests.logstore.partitions import batch_of
from wire.records import place

#: Segments by base offset, and the offsets that are left in each. The active one is not cleaned,
#: but that of a replica which was made lately is a copy of what its leader had left.
LEFT: dict[int, list[int]] = {0: [], 5: [7, 9], 20: [], 21: [30], 40: [40, 41, 44, 45, 50, 51]}
VALUES = "".join(f"v{offset}\n" for offsets in LEFT.values() for offset in offsets)


def write_log(directory: Path) -> None:
    directory.mkdir(parents=True)
    for base_offset, offsets in LEFT.items():
        batches = [batch_of(b"v%d" % offset) for offset in offsets]
        for offset, batch in zip(offsets, batches, strict=True):
            place(batch, offset, 0)
        (directory / f"{base_offset:020}.log").write_bytes(b"".join(batches))


@pytest.mark.parametrize("link", [(), ("--link",)], ids=["copied", "linked"])
@pytest.mark.parametrize("how", ["stopped", "killed", "without checkpoints"])
def test_what_compaction_has_left_is_all_there(
    tmp_path: Path, how: str, link: tuple[str, ...]
) -> None:
    kafka, data = tmp_path / "kafka", tmp_path / "data"
    write_log(kafka / "latest-0")
    if how == "stopped":
        (kafka / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    if how != "without checkpoints":
        # Written once a minute, where Kafka was killed.
        point = 52 if how == "stopped" else 5
        checkpoint = encode_offsets({("latest", 0): point})
        (kafka / "recovery-point-offset-checkpoint").write_bytes(checkpoint)
    result = CliRunner().invoke(main, ["import", str(kafka), "--data-dir", str(data), *link])
    assert result.exit_code == 0, result.output
    for _ in range(2):
        with start_broker(data) as broker:
            read = ["consume", "latest", "-e", "-b", broker.bootstrap_servers]
            assert CliRunner().invoke(main, read).stdout == VALUES
            assert "cut off" not in broker.log
            broker.kill()
            broker.start()
            assert CliRunner().invoke(main, read).stdout == VALUES


@pytest.mark.parametrize("checkpoint", [None, 5])
def test_a_directory_that_is_adopted_has_all_of_it_too(
    tmp_path: Path, checkpoint: int | None
) -> None:
    data = tmp_path / "data"
    write_log(data / "latest-0")
    if checkpoint is not None:
        offsets = encode_offsets({("latest", 0): checkpoint})
        (data / "recovery-point-offset-checkpoint").write_bytes(offsets)
    with start_broker(data) as broker:
        for _ in range(2):
            read = ["consume", "latest", "-e", "-b", broker.bootstrap_servers]
            assert CliRunner().invoke(main, read).stdout == VALUES
            assert "cut off" not in broker.log
            broker.kill()
            broker.start()


def test_an_adopted_log_ends_where_it_is_damaged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_log(data / "latest-0")
    path = data / "latest-0" / f"{21:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with start_broker(data) as broker:
        # By number: what follows the second one, up to the cut, is a gap that no reader passes yet.
        read = ["consume", "latest", "-c", "2", "-b", broker.bootstrap_servers]
        assert CliRunner().invoke(main, read).stdout == "v7\nv9\n"
        assert "cut off" in broker.log


def test_segments_that_overlap_are_refused(tmp_path: Path) -> None:
    kafka = tmp_path / "kafka"
    write_log(kafka / "latest-0")
    path = kafka / "latest-0" / f"{5:020}.log"
    batch = batch_of(b"x")
    place(batch, 25, 0)
    path.write_bytes(path.read_bytes() + bytes(batch))
    result = CliRunner().invoke(main, ["import", str(kafka), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 1
    assert "00000000000000000020.log:0: offset 25 is in the previous segment too" in result.stderr
