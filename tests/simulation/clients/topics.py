"""What an administrator asks of topics, again and again until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.simulation.clients.connection import Connection
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import create_topics as messages


async def create_topics(
    connection: Connection, topics: Mapping[str, tuple[int, Mapping[str, str]]]
) -> None:
    """Return when the broker has all of `topics`: by name, partitions and settings."""
    wanted = [
        messages.CreatableTopic(
            name=name,
            num_partitions=count,
            replication_factor=1,
            configs=[
                messages.CreatableTopicConfig(name=key, value=value)
                for key, value in configs.items()
            ],
        )
        for name, (count, configs) in topics.items()
    ]
    request = messages.CreateTopicsRequest(topics=wanted, timeout_ms=30_000)
    while True:
        try:
            answer = await connection.ask(request, messages.CreateTopicsResponse, 7)
        except Gone:
            await asyncio.sleep(0.1)
            continue
        codes = {topic.error_code for topic in answer.topics}
        assert codes <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}, codes
        return
