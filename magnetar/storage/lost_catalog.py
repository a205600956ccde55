"""What a start does when a used data directory has lost its catalog.

The logs tell which topics there were. Only the catalog had the settings of topics, groups and
brokers, the users, ACLs, quotas, tokens and telemetry subscriptions. A single broker takes the
topics over from the logs (`magnetar.storage.adoption`), and logs once what is lost. A node of a
cluster refuses to start, because only the catalog said which node leads which partition. See
docs/decisions/0071-lost-catalogs.md.
"""

from __future__ import annotations

from pathlib import Path

from logstore.disk.checkpoints import META_PROPERTIES, decode_properties
from magnetar.logging import get_logger
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.storage.topic_names import METADATA_DIRECTORY

#: What the logs cannot bring back, in the words of messages to users.
LOST = "the settings of topics, groups and brokers, users, ACLs, quotas and tokens"

_log = get_logger("catalog")


def is_catalog_lost(directory: Path) -> bool:
    """Return whether a broker has used the directory, but its catalog is missing or empty.

    Call this before the catalog is opened, because opening creates it. Raises OSError.
    """
    catalog = directory / FILE_NAME
    if catalog.exists() and catalog.stat().st_size:
        return False
    # Kafka keeps such data in the log of this topic. A directory of Kafka never had a catalog.
    if (directory / METADATA_DIRECTORY).exists():
        return False
    try:
        return "cluster.id" in decode_properties((directory / META_PROPERTIES).read_bytes())
    except FileNotFoundError:
        return False


def tell_if_catalog_lost(directory: Path) -> None:
    """Log an error if the catalog is gone. Call this when a start is about to create a catalog."""
    if is_catalog_lost(directory):
        _log.error(
            f"the catalog is gone: topics are taken over from their directories, but {LOST} are"
            " lost. If you have a copy of the catalog, stop the broker and put the copy back",
            file=str(directory / FILE_NAME),
        )
