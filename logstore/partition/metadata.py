"""The files that tell Kafka and its tools of a partition: topic id and leader epochs.

Never synced for their own sake: what they say is also in the catalog and in the batches' headers.
"""

from __future__ import annotations

from uuid import UUID

from logstore.disk.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    encode_leader_epochs,
    encode_partition_metadata,
)
from logstore.partition.leader_epochs import LeaderEpochs
from logstore.segments.ledger import Ledger


class MetadataFiles:
    """partition.metadata and leader-epoch-checkpoint of one partition."""

    def __init__(self, ledger: Ledger, topic_id: UUID | None) -> None:
        self._ledger = ledger
        self._topic_id = topic_id
        #: The epoch that the file ends with, as far as is known.
        self.leader_epoch = -1

    def write(self, epochs: LeaderEpochs, leader_epoch: int, end_offset: int) -> None:
        """Write both, where they say something else; `leader_epoch` is about to write at
        `end_offset`, if it has not yet."""
        self.leader_epoch = leader_epoch
        entries = epochs.with_leader(leader_epoch, end_offset).entries
        self._replace(LEADER_EPOCHS, encode_leader_epochs(entries))
        if self._topic_id is not None:
            self._replace(PARTITION_METADATA, encode_partition_metadata(self._topic_id))

    def _replace(self, name: str, data: bytes) -> None:
        if self._ledger.attachments.read(name) != data:
            self._ledger.attachments.write(name, data, sync=False)
