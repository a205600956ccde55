"""Partitions that move between nodes with much state: other partitions are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from logstore.partition import snapshot, state_recovery
from logstore.partition.log_config import LogConfig
from tests.logstore.partitions import batch_of
from tests.logstore.remote.simulated_store import SimulatedDatabase
from tests.logstore.remote.test_remote_directory import Node, fill

#: Snapshots at the end alone.
CONFIG = LogConfig()
_T = TypeVar("_T")


async def turns_during(work: Coroutine[Any, Any, _T]) -> tuple[int, _T]:
    """Do the work; return how many turns others had meanwhile, and the work's result."""
    turns, task = 0, asyncio.create_task(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, await task


async def close(*nodes: Node) -> None:
    for node in nodes:
        await node.directory.close()
        node.group_commit.close()


async def test_the_producers_of_a_log_are_handed_over_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "PARTS_OF_A_PIECE", 2)
    node = Node(database := SimulatedDatabase(), 1)
    log = await node.open(config=CONFIG)
    for producer_id in range(20):
        batch = batch_of(b"v", producer_id=producer_id, epoch=0, sequence=0)
        log.append(log.check(batch, 1_000))
    await log.durable(log.log_end_offset)
    turns, _ = await turns_during(node.directory.release([log]))
    assert turns > 10
    successor = Node(database, 2)
    turns, log = await turns_during(successor.open(epoch=2, config=CONFIG))
    assert turns > 10
    assert {*log.producers} == {*range(20)}
    await close(node, successor)


async def test_a_log_that_was_taken_over_is_replayed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_recovery, "_BATCHES_A_TURN", 2)
    node = Node(database := SimulatedDatabase(), 1)
    await fill(await node.open(config=CONFIG), 40)
    successor = Node(database, 2)
    turns, log = await turns_during(successor.open(epoch=2, config=CONFIG))
    assert turns > 20
    assert log.producers[7].last_sequence == 39
    await close(node, successor)
