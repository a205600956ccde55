"""The broker's topics as the group coordinator sees them, and what a subscription means there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol
from uuid import UUID


class TopicInfo(NamedTuple):
    """A topic as it is now."""

    topic_id: UUID
    name: str
    partition_count: int


class TopicImage(Protocol):
    """All topics. `version` changes with every topic that is made, grown or deleted."""

    @property
    def version(self) -> int: ...

    def by_name(self, name: str) -> TopicInfo | None: ...

    def by_id(self, topic_id: UUID) -> TopicInfo | None: ...


def resolved(names: Iterable[str], topics: TopicImage) -> dict[UUID, TopicInfo]:
    """Return those of the topics that exist, in the order of names."""
    found = (topics.by_name(name) for name in sorted(names))
    return {topic.topic_id: topic for topic in found if topic is not None}


def metadata_hash(names: Iterable[str], topics: TopicImage) -> int:
    """Return an int64 that differs where a topic came, went, grew or was made anew; 0 for none.

    Of our own making: Apache Kafka, given our log, rebalances its groups once.
    """
    found = resolved(names, topics)
    if not found:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in found.values():
        digest.update(topic.topic_id.bytes)
        digest.update(topic.partition_count.to_bytes(4, "big"))
        digest.update(topic.name.encode() + b"\0")
    return int.from_bytes(digest.digest(), "big", signed=True)
