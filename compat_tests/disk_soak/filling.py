"""The disk of the broker: looked at, found full, and given room again by retention.

Full is a disk with no more free than clients must leave (`log.dir.reserve.bytes`). It stays full
for a while, so that the broker is killed and started on it; then an administrator bounds the bulk
topic by `retention.bytes`, and takes the bound away when there is room.
"""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat_tests.pipeline.supervisor import Report

#: `log.dir.reserve.bytes`, and the eighth more from which on records are taken again.
_FULL_BYTES = 33_554_432 * 9 // 8
#: What the bound leaves of the bulk topic, and when there is room enough, as parts of the disk.
_KEPT, _ROOM = 0.1, 0.5
_ANSWER_S = 10.0
_AGAIN_AFTER_S = 2.0


class State(Enum):
    FILLING = "filling"
    FULL = "full"
    MAKING_ROOM = "making room"


class Filling:
    """Looks at the disk, and does what is due. `looked` is called a few times a second."""

    def __init__(
        self, disk: Path, topic: str, partitions: int, full_for_s: float, report: Report
    ) -> None:
        self.state = State.FILLING
        self.times_full = 0
        self.times_resumed = 0
        self._disk = disk
        self._topic = topic
        self._partitions = partitions
        self._full_for_s = full_for_s
        self._report = report
        self._full_at = 0.0
        self._asked_at = 0.0
        self._is_bounded = False

    def look(self, bootstrap: str) -> None:
        """Go on where the disk says so."""
        free, size = self.free_bytes(), self._size_bytes()
        if self.state is State.FILLING and free <= _FULL_BYTES:
            self.times_full += 1
            self._full_at = time.monotonic()
            self._become(State.FULL, free)
        elif self.state is State.FULL and time.monotonic() > self._full_at + self._full_for_s:
            self._become(State.MAKING_ROOM, free)
        elif self.state is State.MAKING_ROOM and not self._is_bounded:
            kept = int(size * _KEPT / self._partitions)
            self._is_bounded = self._set_retention(bootstrap, kept)
        elif free > size * _ROOM and self._is_bounded and self._set_retention(bootstrap, -1):
            self._is_bounded = False
            self.times_resumed += 1
            self._become(State.FILLING, free)

    def free_bytes(self) -> int:
        found = os.statvfs(self._disk)
        return found.f_bavail * found.f_frsize

    def used_share(self) -> float:
        return 1 - self.free_bytes() / self._size_bytes()

    def _size_bytes(self) -> int:
        found = os.statvfs(self._disk)
        return found.f_blocks * found.f_frsize

    def _become(self, state: State, free: int) -> None:
        self.state = state
        self._report(f"the disk: {state.value}, {free >> 20} MB are free")

    def _set_retention(self, bootstrap: str, size_bytes: int) -> bool:
        """Bound each partition of the bulk topic; return whether the broker has agreed."""
        if time.monotonic() < self._asked_at + _AGAIN_AFTER_S:
            return False
        self._asked_at = time.monotonic()
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        entry = ConfigEntry(
            "retention.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, self._topic, incremental_configs=[entry])
        try:
            for future in admin.incremental_alter_configs([resource]).values():
                future.result(timeout=_ANSWER_S)
        except (KafkaException, TimeoutError):
            return False
        return True
