"""CreatePartitions (API key 37): versions 0-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int16, int32


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: int32 = 0
    validate_only: bool = False


class CreatePartitionsTopic(Struct):
    name: str = ""
    count: int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int32] = []


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int32 = 0
    results: list[CreatePartitionsTopicResult] = []


class CreatePartitionsTopicResult(Struct):
    name: str = ""
    error_code: int16 = 0
    error_message: str | None = None
