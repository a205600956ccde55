"""The bound on what waits in a cluster's database for a bucket that is away, or too slow.

While a node's backlog is above `cluster.objects.backlog.max.bytes`, clients' batches are refused as
on a full disk: with KAFKA_STORAGE_ERROR, on which Kafka's clients try again. So a bucket that is
away for hours does not fill the disk of the database. A full one would stop the coordinators' logs,
markers, leases and the catalog too.
"""

from __future__ import annotations

from logstore.disk.room import Room
from logstore.remote.backlog import Backlog
from magnetar.logging import get_logger

_SETTING = "cluster.objects.backlog.max.bytes"

_log = get_logger("objects")


def room_for(backlog: Backlog, bytes_max: int) -> Room:
    """Return the room that a bounded backlog leaves for clients' batches.

    Once the backlog is above `bytes_max`, batches are refused until it is an eighth below that.
    """
    # A room refuses batches when less than its reserve is free, and takes them again once the
    # reserve and an eighth more are. With `bytes_max` as the reserve, the room of an empty backlog
    # is twice that.
    total_bytes = 2 * bytes_max

    def tell(is_full: bool, free_bytes: int) -> None:
        backlog_bytes = total_bytes - free_bytes
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

    return Room(
        lambda: total_bytes - backlog.bytes(),
        bytes_max,
        tell,
        lambda free_bytes: (
            f"{total_bytes - free_bytes} bytes wait in the database for the bucket, and"
            f" {_SETTING}={bytes_max}"
        ),
    )
