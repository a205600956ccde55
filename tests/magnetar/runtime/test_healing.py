"""Healing beside other requests; its rules are tested with the coordinator."""

from __future__ import annotations

import pytest

from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import StartBroker


def log_of(broker: Broker) -> PartitionLog:
    return broker.topics.partition("t", 0)


async def test_a_new_topic_gets_no_marker_for_what_a_deleted_one_of_its_name_had_open(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker could end a transaction that the same producer has open in the new one."""
    broker = await start_broker()
    topic = broker.topics.create("t", 1)
    log = log_of(broker)
    batch = batch_of(b"open", producer_id=7, epoch=0, sequence=0, transactional=True)
    log.append(log.check(batch, 0))
    await log.durable(log.log_end_offset)

    async def made_anew() -> None:
        await broker.topics.deletion.perform([topic])
        broker.topics.create("t", 1)

    with monkeypatch.context() as patched:
        patched.setattr(broker.transactions, "durable", made_anew)
        await broker.healing.sweep()
    assert log_of(broker) is not log and log_of(broker).log_end_offset == 0
    assert not broker.healing.counts
