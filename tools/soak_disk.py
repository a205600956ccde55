"""`python -m tools.soak_disk --minutes 30`: every client at once, on a disk that fills twice.

Makes an ext4 file system in a file, mounts it (which needs root), and starts a broker on it. Beside
the transactions and the groups of `tools.soak_run`, writers of librdkafka, kafka-python, aiokafka
and Java fill the disk, readers of both isolation levels follow them, an administrator makes and
deletes topics, and the broker is killed every 20 s. When the disk is full, it stays so for a while;
then retention makes room.

Nothing may be lost, doubled, torn or dirty; the broker's memory at the end may be a fifth more than
at minute five; and `magnetar check` may find nothing wrong on the disk that is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat_tests.brokers import MAGNETAR, BrokerFailed, MagnetarBroker, running
from compat_tests.churn import plan as churn_plan
from compat_tests.disk_soak.plan import SETTINGS
from compat_tests.disk_soak.run import disk_soak
from compat_tests.pipeline.disturber import Verdict

_FAULTS_SHOWN = 20
_OUTPUT_SHOWN = 4000
_UNMOUNT_TRIES = 20


@contextmanager
def mounted(image: Path, place: Path, size_bytes: int) -> Iterator[Path]:
    """Make a file system of this size in the file `image`, and mount it for the block."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    place.mkdir(parents=True, exist_ok=True)
    # No blocks are kept for root: what is free is free for the broker.
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        for _ in range(_UNMOUNT_TRIES):
            if subprocess.run(["umount", str(place)], check=False).returncode == 0:
                break
            time.sleep(0.5)  # A process that was just killed may still hold a file.


def check(data: Path) -> list[str]:
    """Return what `magnetar check` finds wrong in a stopped broker's directory."""
    done = subprocess.run(
        [str(MAGNETAR), "check", str(data)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    return [f"magnetar check: {line}" for line in (done.stdout + done.stderr).splitlines()]


def main() -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make soakdisk",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--disk-mb", type=int, default=2048)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("python -m tools.soak_disk: error: it mounts a file system: run it as root.")
        return 2
    started_at = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started_at:6.1f} s  {line}", flush=True)

    directory = Path(tempfile.mkdtemp(prefix="magnetar-soak-disk-"))
    broker = MagnetarBroker(directory, {**churn_plan.SETTINGS, **SETTINGS})
    image, size_bytes = directory / "disk.ext4", arguments.disk_mb << 20
    kept = directory / "kept"
    with mounted(image, broker.log_directory, size_bytes) as disk:
        try:
            with running(broker):
                verdict = disk_soak(broker, disk, size_bytes, arguments.minutes * 60, report)
                broker.stop()
            verdict.faults.extend(check(disk))
        except (BrokerFailed, TimeoutError, OSError) as error:
            verdict = Verdict([f"{type(error).__name__}: {error}"], "not finished")
        if verdict.faults:
            shutil.copytree(disk, kept, ignore=shutil.ignore_patterns("lost+found"))
    print(verdict.summary)
    if not verdict.faults:
        shutil.rmtree(directory)
        print("DISK SOAK PASSED: nothing lost, doubled, torn or dirty.")
        return 0
    print("DISK SOAK FAILED:")
    for fault in verdict.faults[:_FAULTS_SHOWN]:
        print(f"  {fault}")
    print(f"The broker's directory is kept: {kept}. The end of its output:")
    print(broker.output()[-_OUTPUT_SHOWN:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
