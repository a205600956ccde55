"""The partitions that a transaction holds: data needs its op first."""

from __future__ import annotations

import asyncio

import pytest

from tests.magnetar.transaction_world import A0, World, refused
from wire.error_code import ErrorCode


@pytest.fixture
async def world() -> World:
    return World()


#: Whether the client knows TRANSACTION_ABORTABLE -> what it is told.
CODES = {False: ErrorCode.INVALID_TXN_STATE, True: ErrorCode.TRANSACTION_ABORTABLE}


async def test_data_and_offsets_need_their_op_first(world: World) -> None:
    coordinator = world.coordinator
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        coordinator.holds.check_produce("tx", 1000, 0, "a", 0, is_abortable_known=True)
    identity = await world.begin(A0)
    coordinator.holds.check_produce("tx", *identity, "a", 0, is_abortable_known=False)
    for is_known, code in CODES.items():
        with refused(code):
            coordinator.holds.check_produce("tx", *identity, "a", 1, is_abortable_known=is_known)
    for is_known, code in CODES.items():
        with refused(code):
            coordinator.holds.check_offsets("tx", *identity, "group", is_abortable_known=is_known)
    await world.until(coordinator.holds.add_offsets("tx", identity, "group"))
    coordinator.holds.check_offsets("tx", *identity, "group", is_abortable_known=False)
    with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        coordinator.holds.check_produce(None, *identity, "a", 0, is_abortable_known=True)


async def test_an_add_is_answered_without_a_sync(world: World) -> None:
    identity = await world.init()
    await asyncio.wait_for(world.coordinator.holds.add_partitions("tx", identity, {A0}), 1)
    log, end_offset = world.coordinator.holds.check_produce(
        "tx", *identity, *A0, is_abortable_known=True
    )
    assert log.high_watermark < end_offset
    await world.settle()
    assert log.high_watermark >= end_offset
