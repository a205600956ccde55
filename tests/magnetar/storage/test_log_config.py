"""What the log store makes of a topic's settings."""

from __future__ import annotations

import pytest

from magnetar.broker import Broker
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from magnetar.storage.logs import log_config


@pytest.mark.parametrize(
    ("given", "interval_bytes"), [(0, 0), (4096, 4096), (2**31 - 1, 256 * 1024)]
)
def test_no_read_walks_far_from_an_index_entry(given: int, interval_bytes: int) -> None:
    # From one to the next, the event loop walks through every batch that is in memory.
    config = TopicConfig({"index.interval.bytes": given})
    assert log_config(config, BrokerConfig({})).index_interval_bytes == interval_bytes


async def test_the_partitions_of_a_topic_share_their_settings(broker: Broker) -> None:
    """Thousands would each compute its own in one step, and keep it."""
    topics = broker.topics
    rows = [topics.new_row(name, 3, 1, {"retention.ms": name}) for name in ("7", "8")]
    await topics.create_together(rows)
    found = [topics.by_name(row.name) for row in rows]
    shared = [{id(log.config): log.config for log in topic.local} for topic in found if topic]
    assert [[each.retention_ms for each in configs.values()] for configs in shared] == [[7], [8]]
    topic = await topics.grow("7", 6)
    topics.configs.replace(topic, {"retention.ms": "5"})
    assert [each.retention_ms for each in {log.config for log in topic.local}] == [5]
    assert len({id(log.config) for log in topic.local}) == 1
    await topics.configs.inherit()
    assert len({id(log.config) for log in topic.local}) == 1
