"""The settings of the disk that the data directory is on: names of magnetar's own."""

from __future__ import annotations

from magnetar.config.setting import Config, long


class DiskConfig(Config):
    """What is kept free, and for whom."""

    log_dir_reserve_bytes = long(
        32 * 1024 * 1024,
        minimum=0,
        since="magnetar 0.1",
        doc="Room that clients leave free on the disk of the data directory: below it their records"
        " are refused with KAFKA_STORAGE_ERROR, which they try again. What the broker itself has to"
        " write may use it: coordinators' logs, markers, the catalog. 0: no reserve.",
    )
