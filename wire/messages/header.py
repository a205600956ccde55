"""RequestHeader, ResponseHeader: versions 1-2, header 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, in_versions, int16, int32


class RequestHeader(Message, versions="1-2", flexible="2+"):
    request_api_key: int16 = 0
    request_api_version: int16 = 0
    correlation_id: int32 = 0
    client_id: str | None = in_versions(flexible="none")


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    correlation_id: int32 = 0
