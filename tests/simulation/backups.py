"""An operator who copies a topic's directory, and puts it back when another topic has the name.

So a start finds data with the id of a topic that is deleted, and that the catalog has forgotten.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from random import Random
from uuid import UUID

from logstore.disk.checkpoints import (
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_partition_metadata,
)
from tests.logstore.simulated_disk import SimulatedDisk
from tests.simulation.world.storage import StoredCatalog


class Backups:
    """Copies of the first partition of one topic, or rather of all topics that had its name."""

    def __init__(self, topic: str, random: Random) -> None:
        self.put_back_count = 0
        self._topic = topic
        self._directory = f"/data/{topic}-0"
        self._random = random
        self._id: UUID | None = None
        self._files: dict[str, bytes] = {}

    def take(self, disk: SimulatedDisk) -> None:
        """Copy what is there, or nothing."""
        if self._random.random() < 0.3 or not disk.exists(
            f"{self._directory}/{PARTITION_METADATA}"
        ):
            return
        files = {
            name: _read(disk, f"{self._directory}/{name}") for name in disk.list(self._directory)
        }
        # Torn by a crash, it tells nothing; the broker does without it.
        with suppress(CorruptCheckpoint):
            self._id = decode_partition_metadata(files[PARTITION_METADATA])
            self._files = files

    def put_back(self, disk: SimulatedDisk, stored: StoredCatalog) -> None:
        """Put the copy back where a topic of the name is there, without a directory."""
        if self._id is None or stored.committed is None or disk.exists(self._directory):
            return
        database = sqlite3.connect(":memory:")
        database.deserialize(stored.committed)
        topics = dict(database.execute("SELECT name, id FROM topics"))
        deleted = [one for (one,) in database.execute("SELECT id FROM deleted_topics")]
        database.close()
        there = topics.get(self._topic)
        if there is None or self._id.bytes in (there, *deleted):
            return
        disk.make_directory(self._directory)
        for name, data in self._files.items():
            disk.open(f"{self._directory}/{name}", create=True).write([data], 0)
        disk.sync_all()
        self.put_back_count += 1


def _read(disk: SimulatedDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()
