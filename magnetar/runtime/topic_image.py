"""The broker's topics as `coordinator.groups.consumer` asks for them."""

from __future__ import annotations

from uuid import UUID

from coordinator.groups.consumer.subscription import TopicInfo
from magnetar.storage.topic import Topic
from magnetar.storage.topics import Topics


class BrokerTopics:
    """A view of the broker's topics; its answers hold at the moment of the question."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        """A number that every topic made, grown or deleted raises."""
        return self._topics.index.version

    def by_name(self, name: str) -> TopicInfo | None:
        """Return the topic of that name, if there is one."""
        return _info(self._topics.by_name(name))

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of that id, if there is one."""
        return _info(self._topics.by_id(topic_id))

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return [topic.name for topic in self._topics.all()]


def _info(topic: Topic | None) -> TopicInfo | None:
    return None if topic is None else TopicInfo(topic.id, topic.name, len(topic.partitions))
