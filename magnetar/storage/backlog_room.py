"""The bound on what waits in a cluster's database for a bucket that is away, or too slow.

Clients' batches are refused while a node's backlog is above `cluster.objects.backlog.max.bytes`, as
they are where a disk is full: with KAFKA_STORAGE_ERROR, which Kafka's clients try again. So a
bucket that is away for hours does not fill the database's disk, which would stop everything: the
coordinators' logs, markers, leases and the catalog go on.
"""

from __future__ import annotations

from logstore.disk.room import Room
from logstore.remote.backlog import Backlog
from magnetar.logging import get_logger

_SETTING = "cluster.objects.backlog.max.bytes"

_log = get_logger("objects")


def room_for(backlog: Backlog, bytes_max: int) -> Room:
    """Return the room that a bounded backlog leaves. It is full until an eighth of it is gone."""

    def tell(is_full: bool, free_bytes: int) -> None:
        backlog_bytes = 2 * bytes_max - free_bytes
        if is_full:
            _log.error(
                "too much waits in the database for the bucket: clients' records are refused until"
                " it takes them",
                backlog_bytes=backlog_bytes,
                setting=_SETTING,
            )
        else:
            _log.info(
                "the bucket has taken enough: clients' records are taken again",
                backlog_bytes=backlog_bytes,
            )

    # A room begins to refuse at its reserve, and takes batches again at an eighth of it more.
    return Room(
        lambda: 2 * bytes_max - backlog.bytes(),
        bytes_max,
        tell,
        lambda free_bytes: (
            f"{2 * bytes_max - free_bytes} bytes wait in the database for the bucket, and"
            f" {_SETTING}={bytes_max}"
        ),
    )
