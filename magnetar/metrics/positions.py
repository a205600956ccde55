"""The committed offsets of all groups beside the ends of their partitions."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from magnetar.runtime.groups import Groups
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.topics import Topics

#: Partitions, or committed offsets, looked at in one turn of the event loop: about a millisecond.
SLICE = 1000
#: Groups looked at in one turn: about a millisecond, too.
GROUPS_SLICE = 128


class Position(NamedTuple):
    """How far a group has read in a partition that exists."""

    group_id: str
    topic: str
    partition: int
    committed: int
    lag: int


Positions = list[Position]


async def positions(groups: Groups, topics: Topics) -> Positions:
    """Return every committed offset of a partition that exists, by group, topic and partition."""
    found: Positions = []
    seen = 0
    for group_id, offsets in groups.committed():
        for key, committed in offsets:
            seen += 1
            if not seen % SLICE:
                await asyncio.sleep(0)
            topic = topics.by_name(key.topic)
            if topic is None or not committed.is_of(topic.id):
                continue
            if key.partition < len(topic.partitions):
                log = topic.partitions[key.partition]
                if isinstance(log, Elsewhere):
                    continue  # This node does not know its end.
                end = log.high_watermark
                lag = max(end - committed.offset, 0)
                found.append(Position(group_id, *key[1:], committed.offset, lag))
    return found
