"""What a transaction coordinator tells a partition when a producer's transaction ends.

Sources: KIP-98 (epochs fence producers and coordinators), KIP-890 (transaction version 2).
"""

from __future__ import annotations

from typing import NamedTuple


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction; `commit` is its outcome."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 1
    """From 2 on the marker's epoch is later than that of the data it ends."""
