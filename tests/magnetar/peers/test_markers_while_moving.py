"""WriteTxnMarkers of clients, where partitions move and each has an epoch of its own."""

from __future__ import annotations

import pytest

from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.peers.test_moving_partitions import Txn, move, nodes
from wire.error_code import ErrorCode
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = ["nodes"]


async def aborted(
    nodes: MovingNodes, txn: Txn, partition: int, coordinator_epoch: int
) -> ErrorCode:
    """Abort the transaction in a partition of node 0, as an administrator may."""
    marker = WritableTxnMarker(
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        coordinator_epoch=coordinator_epoch,
        topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[partition])],
    )
    client = await nodes.client(0)
    answer = await client.ask(WriteTxnMarkersRequest(markers=[marker]), 1, WriteTxnMarkersResponse)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


@pytest.mark.parametrize("coordinator", [0, 1])
async def test_a_marker_of_a_client_fences_no_coordinator(
    nodes: MovingNodes, coordinator: int
) -> None:
    txn = Txn(nodes, nodes.transactional_id(coordinator))
    await txn.begin(coordinator)
    home = nodes.partition(0)
    for target in (1, 0):
        await move(nodes, "a", home, target)
    assert await txn.add(coordinator, home) is ErrorCode.NONE
    assert await txn.produce(0, home, b"one") is ErrorCode.NONE
    log, shard = nodes.log(0), nodes.nodes[coordinator].transactions.store.shard_of(txn.id)
    assert log.leader_epoch > shard.log.leader_epoch
    # The node would end at the next marker of the coordinator, and at each start after that.
    assert await aborted(nodes, txn, home, log.leader_epoch) is ErrorCode.INVALID_REQUEST
    # What Kafka's tool and ours name where the producer has no marker yet.
    assert await aborted(nodes, txn, home, 0) is ErrorCode.NONE
    assert await txn.end(coordinator, commit=False) is ErrorCode.NONE
    assert await txn.add(coordinator, home) is ErrorCode.NONE
    assert log.last_stable_offset == log.log_end_offset
