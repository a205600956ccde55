"""Produce where the logs of one request become durable one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from logstore.remote.commit_sizes import taking_turns
from magnetar.broker import Broker
from magnetar.storage.catalog import Catalog
from magnetar.storage.remote_logs import RemoteLogs
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.magnetar.conftest import RawClient, StartBroker
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch

TOPIC, VERSION = "fruit", 12


async def test_a_request_is_answered_once_all_its_logs_have_had_their_turn(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
) -> None:
    """In a cluster two large logs take turns, and a small one rides the first commit."""
    database = SimulatedDatabase()
    database.start_node(0, 0)

    def open_storage(*parts: object) -> tuple[RemoteLogs, Catalog]:
        logs = RemoteLogs(SimulatedStore(database), *parts)  # type: ignore[arg-type]  # as given
        # So small that the request appends all in one step: no check of a batch goes to a thread.
        choose = partial(taking_turns, large_bytes=1_000, commit_bytes=10_000)
        logs._group_commit._choose = choose
        return logs, Catalog(None)

    broker = await start_broker({"node.id": "0"}, open_storage=open_storage)
    broker.topics.create(TOPIC, 3)
    large = 6_000
    data = [
        PartitionProduceData(
            index=index, records=bytes(build_batch([SimpleRecord(b"k", bytes(size), 1_000)]))
        )
        for index, size in enumerate((large, large, 10))
    ]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
    )
    client = await connect(broker)
    response = await client.ask(request, VERSION, ProduceResponse)
    answers = response.responses[0].partition_responses
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0)] * 3
    logs = [broker.topics.partition(TOPIC, index) for index in range(3)]
    assert [log.high_watermark for log in logs] == [1, 1, 1]
