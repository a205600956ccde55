"""`kill -9` of a process that writes, on a real disk: what it said was acknowledged is there.

The simulated disk tests syncs; this tests that real files, a real thread and a real kernel play
the parts that the simulation gives them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles, StorageFailure
from logstore.partition.log import PartitionLog
from logstore.partition.log_config import LogConfig
from logstore.partition.state import PartitionState
from logstore.sync.group_commit import GroupCommit
from wire.records import BatchHeader, ControlType, parse_marker

NOW_MS = 1_000
CONFIG = LogConfig(segment_bytes=20_000, snapshot_interval_bytes=6_000)

#: Three transactional producers write, commit and abort for ever; each line acknowledges an end.
WRITER = """
import asyncio, sys
from logstore.partition.transaction_buffer import TransactionMarker
from tests_of_kill import CONFIG, NOW_MS, opened, batch_of

async def main():
    directory, commit, files = opened(sys.argv[1])
    log = directory.open("topic", 0)
    epochs = {n: log.producers[n].producer_epoch + 1 if n in log.producers else 0 for n in range(3)}
    for n, epoch in epochs.items():
        log.append_marker(TransactionMarker(n, epoch, 0, commit=False), NOW_MS)
    step = 0
    while True:
        for n, epoch in epochs.items():
            for part in range(2):
                batch = batch_of(b"x" * 100, producer_id=n, epoch=epoch, sequence=2 * step + part,
                                 transactional=True, timestamp=NOW_MS)
                log.append(log.check(batch, NOW_MS))
            marker = TransactionMarker(n, epoch, 0, commit=(step + n) % 3 > 0)
            end = log.append_marker(marker, NOW_MS)
        await log.durable(end.end_offset)
        print(log.high_watermark, log.last_stable_offset, flush=True)
        step += 1

asyncio.run(main())
"""
MODULE = """
from tests.logstore.partitions import batch_of
from logstore.directory.log_directory import LogDirectory
from logstore.disk.durability import Durability
from logstore.disk.files import DiskFiles
from logstore.sync.group_commit import GroupCommit
from logstore.partition.log_config import LogConfig

NOW_MS = 1_000
CONFIG = LogConfig(segment_bytes=20_000, snapshot_interval_bytes=6_000)

def opened(path):
    files = DiskFiles(path)
    commit = GroupCommit(files, Durability.FSYNC, on_failure=print)
    return LogDirectory(path, files, commit, CONFIG, steady_ms=lambda: NOW_MS), commit, files
"""


def fail(failure: StorageFailure) -> None:
    raise failure


def folded(log: PartitionLog) -> PartitionState:
    state = PartitionState()
    for header, batch in log.ledger.batches.iterate(0):
        assert BatchHeader.parse(batch) == header
        if header.is_control:
            marker = parse_marker(batch)
            commit = marker.control_type is ControlType.COMMIT
            state.on_marker(header, marker.coordinator_epoch, NOW_MS, commit=commit)
        else:
            state.on_batch(header, NOW_MS)
    return state


def write_until_killed(module_path: Path, data: Path, lines: int) -> list[int]:
    """Return the numbers of the last line acknowledged before the kill."""
    command = [sys.executable, "-c", WRITER, str(data)]
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{module_path}:{root}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        acknowledged += writer.stdout.read().splitlines(keepends=True)
    whole = [line for line in acknowledged if line.endswith("\n")]
    return [int(number) for number in whole[-1].split()]


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    (tmp_path / "tests_of_kill.py").write_text(MODULE)
    data = tmp_path / "data"
    for lines in (5, 60, 23):
        end_offset, stable_offset = write_until_killed(tmp_path, data, lines)
        files = DiskFiles(str(data))
        commit = GroupCommit(files, Durability.FSYNC, on_failure=fail)
        directory = LogDirectory(str(data), files, commit, CONFIG, steady_ms=lambda: NOW_MS)
        assert not directory.clean_stop.was_clean
        log = directory.open("topic", 0)
        assert log.high_watermark >= end_offset
        assert log.last_stable_offset >= stable_offset
        assert log.state == folded(log)
        directory.abandon()
        commit.close()
        files.close()
