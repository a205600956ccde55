"""One topic as a node knows it: its settings, and its partitions here and elsewhere."""

from __future__ import annotations

from logstore.partition.log import PartitionLog
from magnetar.config.topic import TopicConfig
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Partition, local


class Topic:
    """One topic. `configs` are its own settings as text, `settings` all of them resolved."""

    __slots__ = (
        "configs",
        "id",
        "is_internal",
        "name",
        "partitions",
        "replication_factor",
        "settings",
    )

    def __init__(self, row: TopicRow, settings: TopicConfig, partitions: list[Partition]) -> None:
        self.name = row.name
        self.id = row.id
        self.replication_factor = row.replication_factor
        self.is_internal = row.is_internal
        self.configs = row.configs
        self.settings = settings
        self.partitions = partitions

    @property
    def local(self) -> list[PartitionLog]:
        """The logs of the partitions that this node leads, in order."""
        return local(self.partitions)
