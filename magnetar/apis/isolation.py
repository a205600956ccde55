"""The isolation level of a Fetch or a ListOffsets."""

from __future__ import annotations

from logstore.partition.reader import Isolation
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.fetch import FetchRequest
from wire.messages.list_offsets import ListOffsetsRequest

#: A dictionary: to call the enumeration costs a microsecond, for each fetch.
_LEVELS = {level.value: level for level in Isolation}


def isolation_of(request: FetchRequest | ListOffsetsRequest) -> Isolation:
    """Return the level that a request asks for. UNKNOWN_SERVER_ERROR where there is none such."""
    level = _LEVELS.get(request.isolation_level)
    if level is None:
        # Kafka's code for an exception that it does not expect.
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"There is no isolation level {request.isolation_level}.",
        )
    return level
