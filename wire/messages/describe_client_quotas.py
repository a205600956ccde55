"""DescribeClientQuotas (API key 48): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, float64, int8, int16, int32


class DescribeClientQuotasRequest(Message, api_key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = []
    strict: bool = False


class ComponentData(Struct):
    entity_type: str = ""
    match_type: int8 = 0
    match: str | None = ""


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []


class EntryData(Struct):
    entity: list[EntityData] = []
    values: list[ValueData] = []


class EntityData(Struct):
    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Struct):
    key: str = ""
    value: float64 = 0.0
