"""The settings of topics: stored, inherited, and obeyed by logs that were opened meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from logstore.partition.log import PartitionLog
from magnetar.broker import Broker
from magnetar.storage.logs import Opening

StartBroker = Callable[..., Awaitable[Broker]]

ON_DISK = {"durability": "page-cache"}


async def test_a_stored_setting_that_is_not_understood_stops_no_start(
    start_broker: StartBroker,
) -> None:
    first = await start_broker(ON_DISK)
    stored = {
        "retention.ms": "5",
        "segment.bytes": "14",
        "gone.setting": "x",
        "max.compaction.lag.ms": "1",
        "min.compaction.lag.ms": "2",
    }
    first.catalog.set_topic_configs(first.topics.create("a").id, stored)
    await first.stop()
    broker = await start_broker(ON_DISK)
    topic = broker.topics.by_name("a")
    assert topic is not None and topic.configs == stored
    await broker.topics.configs.inherit()
    assert topic.settings.retention_ms == 5
    assert topic.settings.segment_bytes == broker.config.log_segment_bytes
    assert topic.settings.max_compaction_lag_ms == 1
    assert topic.settings.min_compaction_lag_ms == 0


async def test_settings_changed_while_partitions_are_made_are_theirs_too(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = broker.topics
    topic = topics.create("a", 1)
    open_together = topics._logs.open_together
    changes: list[Callable[[], object]] = []

    async def changed_meanwhile(openings: Iterable[Opening]) -> Sequence[PartitionLog | None]:
        logs = await open_together(openings)
        changes.pop()()
        return logs

    monkeypatch.setattr(topics._logs, "open_together", changed_meanwhile)
    changes.append(lambda: topics.configs.replace(topic, {"retention.ms": "5"}))
    await topics.grow("a", 10)
    assert {log.config.retention_ms for log in topic.local} == {5}
    changes.append(lambda: setattr(broker.config, "log_retention_ms", 7))
    other = await topics.create_in_turns(topics.new_row("b", 10, 1, {}))
    assert {log.config.retention_ms for log in other.local} == {7}
    assert other.settings.retention_ms == 7


async def test_new_logs_are_not_told_again_what_they_were_opened_with(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten thousand of them hold the event loop for 0.1 s.
    told: list[PartitionLog] = []
    broker = await start_broker(ON_DISK)
    monkeypatch.setattr(PartitionLog, "reconfigure", lambda log, _: told.append(log))
    row = broker.topics.new_row("a", 3, 1, {"retention.ms": "5"})
    created = await broker.topics.create_in_turns(row)
    assert told == []
    assert created.settings.retention_ms == 5
