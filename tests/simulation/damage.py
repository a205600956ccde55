"""What a damaged disk excuses: what was said, by the broker or to a reader, and nothing else.

A witness against a partition is excused where its files, or the journal that holds its batches,
were damaged and the broker has told an operator of that partition. A failed start is excused by any
damage. The rest stands: corruption that nothing tells of is the fault that these histories look
for.
"""

from __future__ import annotations

import errno
import logging as levels
from collections.abc import Iterable, Iterator

from coordinator.transactions.metadata import TopicPartition
from logstore.directory.data_directory import ForeignDirectory
from logstore.disk.checkpoints import CorruptCheckpoint
from logstore.disk.files import StorageFailure
from logstore.sync.journal import JournalDamaged
from magnetar.config.load import ConfigError
from tests.simulation.world.log_lines import Line

#: How a broker ends that a disk has failed.
_PLAIN = (StorageFailure, JournalDamaged, CorruptCheckpoint, ForeignDirectory, ConfigError)
_PARTITION = "TopicPartition("
#: What a client is told, or finds, of records that are not what they were.
_NOTICED = ("unreadable: ", "answered CORRUPT_MESSAGE")
_CODES = {errno.EIO, errno.ENOSPC}


def unexcused_failures(failures: Iterable[BaseException]) -> Iterator[BaseException]:
    """Yield those ends of a broker that do not name the disk as their reason."""
    for failure in failures:
        if isinstance(failure, OSError) and failure.errno in _CODES:
            continue
        if not isinstance(failure, _PLAIN):
            yield failure


def partitions_of(paths: Iterable[str]) -> set[TopicPartition]:
    """Return the partitions whose segments are among these files."""
    found = set()
    for path in paths:
        *_, directory, name = path.split("/")
        topic, _, index = directory.rpartition("-")
        if name.endswith(".log") and index.isdigit():
            found.add(TopicPartition(topic, int(index)))
    return found


def told_of(lines: Iterable[Line]) -> set[TopicPartition]:
    """Return the partitions of which the broker has told an operator."""
    found = set()
    for line in lines:
        topic, partition = line.fields.get("topic"), line.fields.get("partition")
        if line.level >= levels.WARNING and isinstance(topic, str) and isinstance(partition, int):
            found.add(TopicPartition(topic, partition))
    return found


def unexcused(
    witnesses: Iterable[str], told: Iterable[TopicPartition], damaged: Iterable[TopicPartition]
) -> list[str]:
    """Return the witnesses that no damage explains.

    `told`: the broker has said that these partitions have lost something. `damaged`: a client finds
    wrong checksums in their records, which tells it enough.
    """
    lost = [repr(one) for one in told]
    rotten = [repr(one) for one in damaged]
    return [
        each
        for each in witnesses
        if not any(one in each for one in lost)
        and not (any(word in each for word in _NOTICED) and any(one in each for one in rotten))
        # A transaction or a group is of no partition alone.
        and (_PARTITION in each or not lost)
    ]
