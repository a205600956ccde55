"""What the log store makes of a topic's settings."""

from __future__ import annotations

import pytest

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
