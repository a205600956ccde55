"""A directory that Apache Kafka 4.3.1 wrote opens as it is, stopped cleanly or not.

kafka_directory.json holds one partition's files, in hex: five plain records, five idempotent ones
(lz4) of producer 0, four transactions of producer 1 (commit, abort, commit, abort; three records
each), one open transaction of producer 2. Kafka's broker was stopped cleanly.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.reader import Isolation
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.aborted_index import AbortedTransaction
from logstore.sync.group_commit import GroupCommit
from tests.logstore.partitions import batch_of
from wire.records import iterate_batches, iterate_records

NOW_MS = 1_795_264_300_000
KAFKA = json.loads((Path(__file__).parent / "kafka_directory.json").read_text())


def lay_out(path: Path, *, is_clean: bool) -> None:
    (path / "t-0").mkdir()
    for name, content in KAFKA.items():
        (path / name).write_bytes(bytes.fromhex(content))
    if not is_clean:
        # As Kafka leaves it when it is killed: indexes preallocated, no snapshot at the end.
        (path / ".kafka_cleanshutdown").unlink()
        (path / "t-0/00000000000000000027.snapshot").unlink()
        (path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
        for suffix, size in (("index", 10 << 20), ("timeindex", (10 << 20) - 4)):
            with (path / f"t-0/00000000000000000000.{suffix}").open("r+b") as file:
                file.truncate(0)
                file.truncate(size)


def fail(failure: StorageFailure) -> None:
    raise failure


async def read(log: PartitionLog, isolation: Isolation) -> tuple[list[bytes | None], object]:
    found = log.reader.read(0, 1 << 20, isolation)
    if found is None:
        found = await log.reader.read_cold(0, 1 << 20, isolation)
    values = [
        record.value
        for header, batch in iterate_batches(found.records)
        if not header.is_control
        for record in iterate_records(batch)
    ]
    return values, found.aborted


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_directory_of_kafkas_opens_as_it_is(tmp_path: Path, is_clean: bool) -> None:
    lay_out(tmp_path, is_clean=is_clean)
    files = DiskFiles(str(tmp_path))
    commit = GroupCommit(files, Durability.FSYNC, on_failure=fail)
    directory = LogDirectory(str(tmp_path), files, commit, LogConfig(), steady_ms=lambda: NOW_MS)
    assert directory.clean_stop.was_clean == is_clean
    identity = directory.identity()
    directory.claim(cluster_id=identity["cluster.id"], node_id=1)
    assert directory.identity() == identity
    (found,) = directory.found_partitions()
    log = directory.open(found.topic, found.partition, found.topic_id)

    assert (log.high_watermark, log.last_stable_offset) == (27, 26)
    plain = [b"plain%d" % n for n in range(5)] + [b"idem%d" % n for n in range(5)]
    values, aborted = await read(log, Isolation.READ_COMMITTED)
    assert values == plain + [b"tx%d-%d" % (n, i) for n in range(4) for i in range(3)]
    assert aborted == [AbortedTransaction(1, 14), AbortedTransaction(1, 22)]
    values, aborted = await read(log, Isolation.READ_UNCOMMITTED)
    assert values[-1] == b"open" and aborted is None
    assert sorted(log.producers) == [0, 1, 2]
    assert log.transactions.is_open(2)
    again = batch_of(*[b"idem%d" % n for n in range(5)], producer_id=0, epoch=0, sequence=0)
    duplicate = log.append(log.check(again, NOW_MS))
    assert (duplicate.base_offset, duplicate.is_duplicate) == (5, True)
    ended = log.append_marker(TransactionMarker(2, 0, 1, commit=False), NOW_MS)
    await asyncio.wait_for(log.durable(ended.end_offset), 10)
    assert log.last_stable_offset == 28

    await directory.close()
    commit.close()
    files.close()
    index = (tmp_path / "t-0/00000000000000000000.txnindex").read_bytes()
    assert index.startswith(bytes.fromhex(KAFKA["t-0/00000000000000000000.txnindex"]))
    assert len(index) == 3 * 34


async def test_our_snapshot_is_kafkas_byte_for_byte(tmp_path: Path) -> None:
    lay_out(tmp_path, is_clean=False)
    files = DiskFiles(str(tmp_path))
    commit = GroupCommit(files, Durability.FSYNC, on_failure=fail)
    directory = LogDirectory(str(tmp_path), files, commit, LogConfig(), steady_ms=lambda: NOW_MS)
    directory.open("t", 0)
    await directory.close()
    commit.close()
    files.close()
    name = "t-0/00000000000000000027.snapshot"
    assert (tmp_path / name).read_bytes().hex() == KAFKA[name]
