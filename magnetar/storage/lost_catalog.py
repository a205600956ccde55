"""A data directory whose catalog is gone, though a broker has used it: what a start does then.

The logs say which topics there were. The settings of topics and brokers, users, ACLs, quotas,
tokens and subscriptions were in the catalog alone. One broker takes the topics over
(`magnetar.storage.adoption`) and says once what is lost; several nodes refuse, because the catalog
said which of them leads what. docs/decisions/0071-lost-catalogs.md
"""

from __future__ import annotations

from pathlib import Path

from logstore.disk.checkpoints import META_PROPERTIES, decode_properties
from magnetar.logging import get_logger
from magnetar.storage.sqlite_database import FILE_NAME
from magnetar.storage.topic_names import METADATA_DIRECTORY

#: What no log tells.
LOST = "the settings of topics, groups and brokers, users, ACLs, quotas and tokens"

_log = get_logger("catalog")


def is_catalog_lost(directory: Path) -> bool:
    """Whether the directory belongs to a cluster, and its catalog is missing or empty.

    Ask before the catalog is opened, which makes it. Raises OSError.
    """
    catalog = directory / FILE_NAME
    if catalog.exists() and catalog.stat().st_size:
        return False
    # Where Kafka keeps what a catalog has: a directory of Kafka never had one.
    if (directory / METADATA_DIRECTORY).exists():
        return False
    try:
        return "cluster.id" in decode_properties((directory / META_PROPERTIES).read_bytes())
    except FileNotFoundError:
        return False


def tell_if_catalog_lost(directory: Path) -> None:
    """Log that the catalog is gone, where it is. Call it where a start is about to make one."""
    if is_catalog_lost(directory):
        _log.error(
            f"the catalog is gone: topics are taken over from their directories, but {LOST} are"
            " lost. Where a copy of it exists, stop the broker and put that back",
            file=str(directory / FILE_NAME),
        )
