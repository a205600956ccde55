"""Tools that look at the transactions of all nodes, while coordinators move between these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.client.cluster import Client
from magnetar.client.errors import ClientError
from magnetar.client.transaction_aborts import abort_in_partition
from magnetar.storage.topic_names import TRANSACTION_STATE
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.peers.test_moving_partitions import Txn, move, nodes, shard_of
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.list_transactions import ListTransactionsResponse

__all__ = ["nodes"]


async def open_transaction(nodes: MovingNodes) -> tuple[Txn, int]:
    """Begin a transaction that node 1 coordinates, with data in a partition of node 0."""
    txn = Txn(nodes, nodes.transactional_id(1))
    await txn.begin(1)
    partition = nodes.partition(0)
    assert await txn.add(1, partition) is ErrorCode.NONE
    assert await txn.produce(0, partition, b"one") is ErrorCode.NONE
    return txn, partition


def aborting(
    nodes: MovingNodes, partition: int, *, left_out: int = -1, on_list: Callable[[], None]
) -> Callable[[], object]:
    """Return what aborts the transaction in a partition, as its tool does; for a thread.

    `on_list` is called after the answer of each node to ListTransactions.
    """

    class Watched(Client):
        def call(self, request: Message, response_class: Any, **options: Any) -> Any:
            answer = super().call(request, response_class, **options)
            if response_class is ListTransactionsResponse:
                on_list()
            return answer

    listener = nodes.nodes[0].listeners[0]

    def abort() -> object:
        with Watched(f"{listener.host}:{listener.port}") as client:
            client.left_out = frozenset({left_out})
            return abort_in_partition(client, ("a", partition), 0, force=False)

    return abort


async def test_a_transaction_whose_coordinator_moves_meanwhile_is_not_aborted(
    nodes: MovingNodes,
) -> None:
    """Node 0 has been asked when the shard comes to it, and node 1 is asked when it has gone."""
    txn, partition = await open_transaction(nodes)
    loop, shard, has_moved = asyncio.get_running_loop(), shard_of(nodes, txn.id), False

    def move_once() -> None:
        nonlocal has_moved
        if not has_moved:
            has_moved = True
            moving = move(nodes, TRANSACTION_STATE, shard, 0)
            asyncio.run_coroutine_threadsafe(moving, loop).result()

    abort = aborting(nodes, partition, on_list=move_once)
    with pytest.raises(ClientError, match=f"no broker has told .* {TRANSACTION_STATE}-{shard}:"):
        await asyncio.to_thread(abort)
    with pytest.raises(ClientError, match="the transaction does not hang"):
        await asyncio.to_thread(abort)
    assert await txn.end(0, commit=True) is ErrorCode.NONE
    assert nodes.log(0).last_stable_offset == 2


async def test_a_transaction_whose_coordinator_is_not_asked_is_not_aborted(
    nodes: MovingNodes,
) -> None:
    txn, partition = await open_transaction(nodes)
    abort = aborting(nodes, partition, left_out=1, on_list=lambda: None)
    with pytest.raises(ClientError, match="no broker has told"):
        await asyncio.to_thread(abort)
    assert await txn.end(1, commit=True) is ErrorCode.NONE
