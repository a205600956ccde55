"""AlterClientQuotas (API key 49): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, float64, int16, int32


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    entries: list[EntryData] = []
    validate_only: bool = False


class EntryData(Struct):
    entity: list[EntityData] = []
    ops: list[OpData] = []


class EntityData(Struct):
    entity_type: str = ""
    entity_name: str | None = ""


class OpData(Struct):
    key: str = ""
    value: float64 = 0.0
    remove: bool = False


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = 0
    entries: list[ResponseEntryData] = []


class ResponseEntryData(Struct):
    error_code: int16 = 0
    error_message: str | None = ""
    entity: list[ResponseEntityData] = []


class ResponseEntityData(Struct):
    entity_type: str = ""
    entity_name: str | None = ""
