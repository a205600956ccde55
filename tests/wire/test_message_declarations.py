"""The declarations say what the schemas in Kafka's jars say, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wire
from tests.wire.message_strategies import every_message
from tools.generate_messages import generate
from tools.kafka_schemas import Schema, read_schemas, snake_case, stable_versions
from wire import api, types
from wire.message import MetadataRecord, RecordKey, RecordValue
from wire.schema import NO_VERSION, Field, VersionRange, fields_of

MESSAGES = {message.__name__: message for message in every_message()}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Schema]:
    return read_schemas()


def test_the_declarations_are_what_the_tool_writes(tmp_path: Path) -> None:
    written = generate(tmp_path)
    ours = Path(wire.__file__).parent
    drifted = [
        str(path.relative_to(tmp_path))
        for path in written
        if path.read_text() != (ours / path.relative_to(tmp_path)).read_text()
    ]
    assert drifted == []


def test_every_schema_is_declared_and_nothing_else(schemas: dict[str, Schema]) -> None:
    assert set(MESSAGES) == set(schemas)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_is_what_its_schema_says(name: str, schemas: dict[str, Schema]) -> None:
    message: Any = MESSAGES[name]
    schema = schemas[name]
    request = schemas.get(name.replace("Response", "Request"))
    assert (message.min_version, message.max_version) == stable_versions(schema, request)
    valid = VersionRange(message.min_version, message.max_version)
    flexible = VersionRange.parse(schema["flexibleVersions"]) & valid
    assert message.flexible_since == (None if flexible.empty else flexible.first)
    if schema["type"] in ("request", "response"):
        assert message.api_key == schema["apiKey"]
    elif schema["type"].startswith("coordinator"):
        assert issubclass(message, RecordKey if schema["type"].endswith("key") else RecordValue)
        assert message.record_type == schema["apiKey"]
    elif schema["type"] == "metadata":
        assert issubclass(message, MetadataRecord)
        assert message.record_type == schema["apiKey"]
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    compare(message, schema["fields"], common, valid)


def compare(declared: Any, expected: list[Schema], common: Any, valid: VersionRange) -> None:
    """Compare a struct with its fields in the schema, in the versions `valid`."""
    relevant = [schema for schema in expected if not (versions_of(schema) & valid).empty]
    ours = fields_of(declared)
    assert [field.name for field in ours] == [snake_case(schema["name"]) for schema in relevant]
    for field, schema in zip(ours, relevant, strict=True):
        compare_field(field, schema, valid)
        kind = schema["type"].removeprefix("[]")
        if kind[0].isupper():
            inner = field.type.element if isinstance(field.type, types.Array) else field.type
            assert isinstance(inner, types.Nested)
            fields = schema.get("fields") or common[kind]
            compare(inner.struct, fields, common, versions_of(schema) & valid)


def versions_of(schema: Schema) -> VersionRange:
    return VersionRange.parse(schema.get("versions") or schema["taggedVersions"])


def compare_field(field: Field, schema: Schema, valid: VersionRange) -> None:
    def within(key: str) -> VersionRange:
        return VersionRange.parse(schema.get(key, "none")) & valid

    assert field.versions & valid == versions_of(schema) & valid
    assert field.nullable & valid == within("nullableVersions") & versions_of(schema)
    assert field.tagged & valid == within("taggedVersions")
    assert field.tag == schema.get("tag")
    assert shown(field.type) == schema["type"].replace(shown_struct(schema["type"]), "struct")
    assert default_shown(field) == default_expected(schema, field)
    if field.versions & valid != valid:
        assert field.ignorable == schema.get("ignorable", False)
    override = schema.get("flexibleVersions")
    assert field.flexible == (None if override is None else VersionRange.parse(override))


def shown_struct(text: str) -> str:
    kind = text.removeprefix("[]")
    return kind if kind[0].isupper() else "\0"


def shown(kind: types.WireType) -> str:
    """A type in the schemas' notation, any struct as `struct`."""
    match kind:
        case types.Array():
            return "[]" + shown(kind.element)
        case types.Scalar():
            return kind.name
        case types.Nested():
            return "struct"
    return {types.Uuid: "uuid", types.String: "string", types.RecordBytes: "records"}.get(
        type(kind), "bytes"
    )


def default_shown(field: Field) -> Any:
    return "struct" if isinstance(field.default, type) else field.default


def default_expected(schema: Schema, field: Field) -> Any:
    """The default a schema names, or the one Kafka gives its type."""
    kind: str = schema["type"]
    given = schema.get("default")
    if given == "null":
        return None  # a null of JSON, though, names no default
    if kind == "records":
        return b"" if field.nullable == NO_VERSION or field.nullable.empty else None
    if kind.startswith("[]"):
        return []
    if kind[0].isupper():
        return "struct"
    zero = {"bool": False, "string": "", "bytes": b"", "uuid": types.ZERO_UUID, "float64": 0.0}
    if given is None or kind in ("string", "bytes", "uuid"):
        return given if given is not None else zero.get(kind, 0)
    if kind == "bool":
        return str(given).lower() == "true"
    return int(str(given), 0)


def test_the_table_of_apis_names_every_request_and_response() -> None:
    for message in MESSAGES.values():
        if message.api_key >= 0:
            name = api.API_NAMES[message.api_key]
            assert message.__name__ in (f"{name}Request", f"{name}Response")
            assert {f"{name}Request", f"{name}Response"} <= set(MESSAGES)
