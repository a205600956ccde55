"""The settings of topics: their own, the broker's behind these, and what their logs obey.

The catalog has a topic's own settings as text. A topic and its logs have all settings resolved:
the topic's own, and the broker's defaults for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from uuid import UUID

from logstore.partition.log import PartitionLog
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import (
    TopicConfig,
    broker_defaults,
    parse_topic_configs,
    read_topic_configs,
    resolve,
)
from magnetar.logging import get_logger
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.differences import difference
from magnetar.storage.logs import Logs
from magnetar.storage.topic import Topic, in_parts, no_topic
from magnetar.storage.topic_index import TopicIndex

#: Partitions that are given new settings in one turn of the loop, a few milliseconds.
_PARTITIONS_A_TURN = 256

_log = get_logger("topics")


class TopicConfigs:
    """Changes the settings of topics, and lets their logs obey them."""

    def __init__(
        self,
        index: TopicIndex,
        catalog: Catalog,
        logs: Logs,
        config: BrokerConfig,
        leaving: Set[UUID],
    ) -> None:
        """`leaving`: the ids of topics that are being deleted at this moment."""
        self._index = index
        self._catalog = catalog
        self._logs = logs
        self._config = config
        self._leaving = leaving

    def defaults(self) -> Mapping[str, object]:
        """Return what the broker's settings say of topics at this moment."""
        return broker_defaults(self._config)

    def replace(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace all settings of a topic's own, durably, and apply them at once.

        Expects what `parse_topic_configs` accepts. Raises UNKNOWN_TOPIC_OR_PARTITION for a topic
        that is being deleted, here or by another node.
        """
        # Resolved before the catalog is written: texts that cannot be obeyed are not stored.
        settings = resolve(parse_topic_configs(configs), self.defaults())
        changes, is_leaving = difference(topic.configs, configs), topic.id in self._leaving
        if is_leaving or not self._catalog.set_topic_configs(topic.id, changes):
            raise no_topic(topic.name)
        self.apply(topic, configs, settings)

    async def inherit(self) -> None:
        """Apply the broker's settings, which have changed, to every topic.

        Takes many turns of the event loop. For a topic that is deleted meanwhile it has no effect.
        """
        counted = ((topic, len(topic.partitions)) for topic in self._index.all())
        for part in in_parts(counted, _PARTITIONS_A_TURN):
            defaults = self.defaults()
            for topic in part:
                own, _ = read_topic_configs(topic.configs)
                self.apply(topic, topic.configs, resolve(own, defaults))
            await asyncio.sleep(0)

    def apply(self, topic: Topic, texts: Mapping[str, str], settings: TopicConfig) -> None:
        """Let a topic and its logs obey `settings`. The catalog has `texts`, its own, already."""
        topic.configs = dict(texts)
        topic.settings = settings
        self._logs.reconfigure(topic.name, topic.local, settings)

    def catch_up(
        self, name: str, logs: list[PartitionLog], opened: TopicConfig, now: TopicConfig
    ) -> None:
        """Apply to `logs` the settings of `now`, where these changed since the logs were opened."""
        if not now.says_as(opened):
            self._logs.reconfigure(name, logs, now)


def stored_settings(row: TopicRow, defaults: Mapping[str, object]) -> TopicConfig:
    """Return the settings of a topic as the catalog has it. What cannot be read is told, and is not
    obeyed.
    """
    values, reasons = read_topic_configs(row.configs)
    for reason in reasons:
        _log.warning("stored config ignored", topic=row.name, reason=reason)
    return resolve(values, defaults)
