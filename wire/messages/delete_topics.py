"""DeleteTopics (API key 20): versions 1-6.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import UUID, ZERO_UUID, Message, Struct, in_versions, int16, int32


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = in_versions("6+")
    topic_names: list[str] = in_versions("1-5", ignorable=True)
    timeout_ms: int32 = 0


class DeleteTopicState(Struct):
    name: str | None = None
    topic_id: UUID = ZERO_UUID


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int32 = 0
    responses: list[DeletableTopicResult] = []


class DeletableTopicResult(Struct):
    name: str | None = in_versions("1+", nullable="6+")
    topic_id: UUID = in_versions("6+", ignorable=True)
    error_code: int16 = 0
    error_message: str | None = in_versions("5+", ignorable=True, default=None)
