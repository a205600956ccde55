"""The records of internal topics, decoded to JSON values.

These are `__transaction_state`, `__consumer_offsets` and `__cluster_metadata`. A key's first two
bytes are its record type, which has a schema for the key and one for the value. Bytes that no
schema fits are shown as text, or as hexadecimal digits.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

import wire.internal
from coordinator.transactions.records import decode_key, decode_value
from magnetar.importing.metadata_log import decode_record
from magnetar.storage.topic_names import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE
from wire.errors import WireError
from wire.internal.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from wire.internal.transaction_log import TransactionLogKey, TransactionLogValue
from wire.internal.versioned import decode_compatible, decode_versioned, peek_version
from wire.message import Message, RecordKey, RecordValue, Struct
from wire.schema import fields_of
from wire.types import uuid_text

DECODED = frozenset({TRANSACTION_STATE, CONSUMER_OFFSETS, CLUSTER_METADATA})
_METADATA_TYPE_AT = 1
#: Fields of classic group members that hold a message of the consumer protocol.
_EMBEDDED: dict[str, type[Message]] = {
    "subscription": ConsumerProtocolSubscription,
    "assignment": ConsumerProtocolAssignment,
}


def decode_internal(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Return a record of an internal topic, decoded; None if no schema fits it."""
    try:
        # Before the check of the key: records of the metadata log have none.
        if topic == CLUSTER_METADATA:
            return None if value is None else _metadata(value)
        if key is None:
            return None
        if topic == TRANSACTION_STATE:
            return _transaction(key, value)
        return _group(key, value)
    except WireError:
        return None


def text(data: bytes | memoryview | None) -> str | None:
    """Return bytes as text, or as `0x` and hexadecimal digits if they are no UTF-8."""
    if data is None:
        return None
    try:
        shown = bytes(data).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(data).hex()}"
    # Line breaks at the ends are left alone; control characters within would garble a terminal, so
    # they are escaped.
    return shown if shown.isprintable() or shown.strip().isprintable() else repr(shown)[1:-1]


def to_json(value: Any) -> Any:
    """Return a struct, or a field of one, as JSON values."""
    if isinstance(value, Struct):
        return {field.name: to_json(getattr(value, field.name)) for field in fields_of(type(value))}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, UUID):
        return uuid_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return text(bytes(value))
    return value


def _transaction(key: bytes, value: bytes | None) -> dict[str, Any] | None:
    transactional_id = decode_key(key)
    if transactional_id is None:
        return None
    said: dict[str, Any] = {"type": "transaction", "transactional_id": transactional_id}
    if value is None:
        return {**said, "deleted": True}
    # Both: the schema shows every field as stored, and `decode_value` what magnetar's tagged fields
    # mean.
    stored = to_json(decode_versioned(TransactionLogValue, value))
    txn = decode_value(transactional_id, value)
    stored["transaction_status"] = txn.state.label
    stored["txn_id"] = None if txn.txn_id is None else str(txn.txn_id)
    stored["last_producer_epoch"] = txn.last_producer_epoch
    if txn.parent_id is not None:
        stored["parent_id"] = txn.parent_id
    if txn.votes:
        stored["votes"] = [vote._asdict() for vote in txn.votes]
    return {**said, **stored}


def _group(key: bytes, value: bytes | None) -> dict[str, Any] | None:
    schemas = _group_schemas().get(peek_version(key))
    if schemas is None:
        return None
    key_schema, value_schema = schemas
    said = {
        "type": key_schema.__name__.removesuffix("Key"),
        **to_json(key_schema.decode(memoryview(key)[2:], key_schema.max_version)),
    }
    if value is None:
        return {**said, "deleted": True}
    stored = decode_versioned(value_schema, value)
    shown = to_json(stored)
    # Only values of classic groups have members.
    for member, shown_member in zip(
        getattr(stored, "members", ()), shown.get("members", ()), strict=False
    ):
        for name, schema in _EMBEDDED.items():
            shown_member[name] = _embedded(schema, bytes(getattr(member, name, b"")))
    return {**said, **shown}


def _embedded(schema: type[Message], data: bytes) -> Any:
    try:
        return to_json(decode_compatible(schema, data)) if data else None
    except WireError:
        return text(data)


@cache
def _group_schemas() -> dict[int, tuple[type[RecordKey], type[RecordValue]]]:
    """Return the schemas of `__consumer_offsets`: record type -> key, value.

    Types 0 and 1 are both offsets, with one schema; a value carries its own version.
    """
    keys: dict[int, type[RecordKey]] = {}
    values: dict[int, type[RecordValue]] = {}
    for module_info in pkgutil.iter_modules(wire.internal.__path__):
        module = import_module(f"{wire.internal.__name__}.{module_info.name}")
        for found in vars(module).values():
            if not isinstance(found, type) or found.__module__ != module.__name__:
                continue
            # Their record types begin at 0 too, in a topic of their own.
            if found in (TransactionLogKey, TransactionLogValue):
                continue
            if issubclass(found, RecordKey):
                keys[found.record_type] = found
            elif issubclass(found, RecordValue):
                values[found.record_type] = found
    values[0] = values[1]
    return {record_type: (keys[record_type], values[record_type]) for record_type in keys}


def _metadata(value: bytes) -> dict[str, Any]:
    record = decode_record(value)
    if record is None:
        return {"type": f"metadata record {value[_METADATA_TYPE_AT]}"}
    return {"type": type(record).__name__, **to_json(record)}
