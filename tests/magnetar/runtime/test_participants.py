"""Markers at the partitions of one process."""

from __future__ import annotations

from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
)
from logstore.partition.transaction_buffer import TransactionMarker
from tests.magnetar.transaction_world import A0, World, batch_by


async def test_a_commit_aborts_what_a_fenced_transaction_has_left_open() -> None:
    """A node's power loss took the add of epoch 0; the next transaction wrote nothing here."""
    for version, marker_epoch, outcome in (
        (TRANSACTION_VERSION_1, 4, "COMMIT"),
        (TRANSACTION_VERSION_1, 5, "ABORT"),
        (TRANSACTION_VERSION_2, 5, "COMMIT"),
        (TRANSACTION_VERSION_2, 6, "ABORT"),
    ):
        world = World()
        log = world.partition(*A0)
        data = batch_by(ProducerIdentity(7, 4), 0)
        log.append(log.check(data, world.now_ms))
        marker = TransactionMarker(7, marker_epoch, 0, True, version)
        world.services().participants.append_marker(A0, marker, world.now_ms)
        await world.settle()
        assert world.markers(A0) == [(outcome, marker_epoch)]
        assert world.aborted(A0) is (outcome == "ABORT")
