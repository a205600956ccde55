"""The missing topics that one Metadata request creates (`auto.create.topics.enable`).

Others are served meanwhile. One request creates no more partitions than a CreateTopics may. Any
further names are answered LEADER_NOT_AVAILABLE, on which clients ask again.
"""

from __future__ import annotations

import asyncio

from magnetar.storage.topic import Topic, being_created
from magnetar.storage.topic_counts import BROKER_DEFAULT, PARTITIONS_MAX
from magnetar.storage.topics import Topics
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: How long a request waits for a topic that another one creates: few take longer.
_WAIT_S_MAX = 0.5


class AutoCreation:
    """What one request has created so far."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._partition_count = 0

    async def ensure(self, name: str) -> Topic:
        """Return the topic, created durably with the broker's defaults if it is missing.

        Raises LEADER_NOT_AVAILABLE while another request, or another node, creates it, or if this
        request has created enough. Else raises as `Topics.check_new` and `Topics.new_row`.
        """
        topics = self._topics
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await topics.index.until_made(name)
        except TimeoutError:
            raise being_created(name) from None
        if topics.by_name(name) is not None or topics.is_internal(name):
            return topics.ensure(name)
        topics.check_new(name, {})
        row = topics.new_row(name, BROKER_DEFAULT, BROKER_DEFAULT, {})
        if self._partition_count + row.partition_count > PARTITIONS_MAX:
            raise being_created(name)
        self._partition_count += row.partition_count
        try:
            return await topics.create_in_turns(row)
        except KafkaError as refusal:
            if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                raise being_created(name) from None
            raise
