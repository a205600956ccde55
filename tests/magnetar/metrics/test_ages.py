"""Ages in the metrics, where the wall clock is set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.broker import Broker
from tests.magnetar.clocks import MovedClock
from tests.magnetar.conftest import RawClient, StartBroker
from tests.magnetar.raw_producer import RawProducer


async def test_no_age_is_negative_after_the_wall_clock_was_set_back(
    start_broker: StartBroker,
    connect: Callable[[Broker], Awaitable[RawClient]],
    clock: MovedClock,
) -> None:
    broker = await start_broker(clock=clock)
    broker.topics.create("a", 2)
    client = await connect(broker)
    for transactional_id, is_vote in (("tx", False), ("etl~>1", True)):
        producer = RawProducer(client, transactional_id)
        assert await producer.init() == await producer.add() == await producer.produce(11) == 0
        assert not is_vote or await producer.end(commit=True) == 0
    clock.set_by_ms = -3_600_000
    ages = {
        family.name: [sample.value for sample in family.samples]
        for family in await broker.gather_metrics()
        if family.name.startswith("magnetar_oldest_")
    }
    assert ages == {
        "magnetar_oldest_open_transaction_seconds": [0.0],
        "magnetar_oldest_vote_seconds": [0.0],
    }
