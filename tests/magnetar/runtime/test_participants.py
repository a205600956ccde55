"""Markers at the partitions of one process."""

from __future__ import annotations

import pytest

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
)
from coordinator.transactions.remembered_holds import RememberedHolds
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.turns import Turns
from tests.magnetar.transaction_world import A0, World, batch_by

DATA = ProducerIdentity(7, 4)


def open_in_a0(world: World) -> None:
    log = world.partition(*A0)
    log.append(log.check(batch_by(DATA, 0), world.now_ms))


@pytest.mark.parametrize("is_owed_elsewhere", [False, True])
async def test_a_commit_aborts_what_a_fenced_transaction_has_left_open(
    is_owed_elsewhere: bool,
) -> None:
    """A node's power loss took the add of epoch 4; the next transaction wrote nothing here."""
    for version, marker_epoch, outcome in (
        (TRANSACTION_VERSION_1, 4, "COMMIT"),
        (TRANSACTION_VERSION_1, 5, "ABORT"),
        (TRANSACTION_VERSION_2, 5, "COMMIT"),
        (TRANSACTION_VERSION_2, 6, "ABORT"),
    ):
        world = World()
        open_in_a0(world)
        participants = world.services().participants
        work = MarkerWork("tx", 7, marker_epoch, True, frozenset({A0}), version)
        if is_owed_elsewhere:
            participants.append_owed(work, A0, Part.MARKERS, 0, world.now_ms)
        else:
            assert list(participants.append([work], Part.MARKERS, 0, world.now_ms, []))
        await world.settle()
        assert world.markers(A0) == [(outcome, marker_epoch)]
        assert world.aborted(A0) is (outcome == "ABORT")


@pytest.mark.parametrize("is_owed_elsewhere", [False, True])
async def test_what_ends_without_a_marker_is_remembered_no_more(is_owed_elsewhere: bool) -> None:
    """A coordinator names all that a transaction holds. It has died with the decision alone, and
    its successor asks for the markers that are missing: a partition without data needs none."""
    world, held = World(), RememberedHolds()
    participants = LocalParticipants(world, world.pending_acks(), Turns(), held)
    question = held.ask("tx", *DATA)
    held.told("tx", *DATA, {A0})
    work = MarkerWork("tx", *DATA, False, frozenset({A0}), TRANSACTION_VERSION_1)
    if is_owed_elsewhere:
        participants.append_owed(work, A0, Part.MISSING_MARKERS, 0, world.now_ms)
    else:
        list(participants.append([work], Part.MISSING_MARKERS, 0, world.now_ms, []))
    held.answered(question, {A0})
    assert not held.holds("tx", *DATA, A0)
    assert world.markers(A0) == []


async def test_a_marker_that_is_asked_for_by_name_is_appended_as_asked() -> None:
    """WriteTxnMarkers and healing know what is open. As in Kafka, a later epoch commits it."""
    world = World()
    open_in_a0(world)
    marker = TransactionMarker(7, 6, 0, commit=True)
    world.services().participants.append_marker(A0, marker, world.now_ms)
    await world.settle()
    assert (world.markers(A0), world.aborted(A0)) == ([("COMMIT", 6)], False)
