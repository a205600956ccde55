"""Write the declarations of wire/messages and wire/internal from the schemas in Kafka's jars.

    python -m tools.generate_messages [--out DIRECTORY]

A version range is written only where it says something: a field that exists wherever its struct
does stands bare, with its default. What is written is put into shape by ruff.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.kafka_schemas import Schema, read_schemas, snake_case, stable_versions
from tools.reference_kafka import VERSION
from wire.schema import VersionRange

RUFF_CONFIG = Path(__file__).parents[1] / "pyproject.toml"

NUMBERS = ("int8", "int16", "int32", "int64", "uint16", "uint32", "float64")
PLAIN_TYPES = {"bool": "bool", "string": "str", "bytes": "bytes", "uuid": "UUID"}
ZERO = {"bool": "False", "string": '""', "bytes": 'b""', "uuid": "ZERO_UUID", "float64": "0.0"}


class Message(NamedTuple):
    """A schema and what is needed to declare it."""

    schema: Schema
    versions: VersionRange
    #: Names of its structs in our module, by their names in the schema.
    struct_names: dict[str, str]

    @property
    def name(self) -> str:
        name: str = self.schema["name"]
        return name

    @property
    def is_response(self) -> bool:
        return bool(self.schema["type"] == "response")


def versions_of(field: Schema) -> VersionRange:
    """Where a field exists; one that names tagged versions alone exists in those."""
    return VersionRange.parse(field.get("versions") or field["taggedVersions"])


def structs_of(schema: Schema, valid: VersionRange) -> dict[str, tuple[list[Schema], VersionRange]]:
    """Name -> (fields, versions) of every struct below a message, in the order of their appearance.

    The versions run from the first to the last of those of the fields that use it.
    """
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    found: dict[str, tuple[list[Schema], VersionRange]] = {}
    queue: list[tuple[list[Schema], VersionRange]] = [(schema["fields"], valid)]
    while queue:
        fields, within = queue.pop(0)
        for field in fields:
            name = field["type"].removeprefix("[]")
            used = versions_of(field) & within
            if not name[0].isupper() or used.empty:
                continue
            inner = field.get("fields") or common[name]
            if name in found:
                known = found[name][1]
                used = VersionRange(min(known.first, used.first), max(known.last, used.last))
            found[name] = (inner, used)
            queue.append((inner, used))
    return found


def show_versions(versions: VersionRange, valid: VersionRange) -> str:
    if versions.last >= valid.last:
        return f"{versions.first}+"
    return _span(versions)


class FieldText:
    """One field's declaration."""

    def __init__(self, field: Schema, message: Message, valid: VersionRange) -> None:
        self.field = field
        self.message = message
        self.valid = valid  # where its struct exists
        self.versions = versions_of(field) & valid
        self.tagged = VersionRange.parse(field.get("taggedVersions", "none")) & self.versions
        nullable = VersionRange.parse(field.get("nullableVersions", "none"))
        self.nullable = nullable & self.versions
        self.type: str = field["type"]

    @property
    def annotation(self) -> str:
        """The Python type."""
        kind = self.type.removeprefix("[]")
        if kind in NUMBERS:
            text = kind
        elif kind == "records":
            text = "RecordBuffers" if self.message.is_response else "Records"
        else:
            text = PLAIN_TYPES.get(kind) or self.message.struct_names[kind]
        if self.type.startswith("[]"):
            text = f"list[{text}]"
        return text if self.nullable.empty else f"{text} | None"

    @property
    def zero(self) -> str:
        """The default of the type; for a struct there is no literal."""
        if self.type.startswith("[]"):
            return "[]"
        if self.type == "records":
            return 'b""' if self.nullable.empty else "None"
        if self.type[0].isupper():
            return ""
        return ZERO.get(self.type, "0")

    @property
    def default(self) -> str:
        """The default as Python, or an empty text where the schema names none.

        Null is the text "null"; a null of JSON names none, to Kafka too.
        """
        given = self.field.get("default")
        if given is None:
            return "None" if self.zero == "None" else ""
        if given == "null":
            return "None"
        if self.type == "bool":
            return "True" if str(given).lower() == "true" else "False"
        if self.type == "string":
            return repr(given).replace("'", '"')
        return str(int(str(given), 0))

    def arguments(self) -> Iterator[str]:
        """The arguments of in_versions; none where a bare default says all."""
        valid = self.valid
        everywhere: bool = self.versions == valid
        range_text = show_versions(self.versions, valid)
        if not everywhere:
            yield f'"{range_text}"'
        elif not self.tagged.empty or self.nullable not in (NONE, self.versions):
            yield f'"{show_versions(self.versions, valid)}"'
        if self.nullable not in (NONE, self.versions):
            yield f'nullable="{show_versions(self.nullable, valid)}"'
        if not self.tagged.empty:
            yield f"tag={self.field['tag']}"
            if self.tagged != self.versions:
                yield f'tagged="{show_versions(self.tagged, valid)}"'
        if "flexibleVersions" in self.field:
            yield f'flexible="{self.field["flexibleVersions"]}"'
        if self.field.get("ignorable") and not everywhere:
            yield "ignorable=True"

    def declaration(self) -> str:
        arguments = list(self.arguments())
        head = f"{snake_case(self.field['name'])}: {self.annotation} = "
        default = self.default
        if not arguments and (default or self.zero):
            return head + (default or self.zero)
        if default and default != self.zero or default == "None":
            arguments.append(f"default={default}")
        return f"{head}in_versions({', '.join(arguments)})"


NONE = VersionRange.parse("none")


def class_lines(
    name: str, head: str, fields: Iterable[Schema], message: Message, valid: VersionRange
) -> Iterator[str]:
    """One class; its fields as they are in the versions `valid`."""
    yield f"class {name}({head}):"
    declared = [FieldText(field, message, valid) for field in fields]
    declared = [text for text in declared if not text.versions.empty]
    if not declared:
        yield "    pass"
    for text in declared:
        yield f"    {text.declaration()}"
    yield ""
    yield ""


def message_head(message: Message) -> str:
    """The base and the class arguments of a message."""
    schema, valid = message.schema, message.versions
    kind: str = schema["type"]
    base, arguments = "Message", []
    if kind.startswith("coordinator-"):
        base = "RecordKey" if kind.endswith("key") else "RecordValue"
        arguments.append(f"record_type={schema['apiKey']}")
    elif kind == "metadata":
        base = "MetadataRecord"
        arguments.append(f"record_type={schema['apiKey']}")
    elif "apiKey" in schema:
        arguments.append(f"api_key={schema['apiKey']}")
    arguments.append(f'versions="{_span(valid)}"')
    flexible = VersionRange.parse(schema["flexibleVersions"]) & valid
    if not flexible.empty:
        arguments.append(f'flexible="{flexible.first}+"')
    return ", ".join([base, *arguments])


def module_text(title: str, messages: list[Message]) -> str:
    """A whole module; `title` is the first line of its docstring."""
    body: list[str] = []
    for message in messages:
        valid = message.versions
        fields = message.schema["fields"]
        body += class_lines(message.name, message_head(message), fields, message, valid)
        for name, (fields, used) in structs_of(message.schema, valid).items():
            body += class_lines(message.struct_names[name], "Struct", fields, message, used)
    text = "\n".join(body)
    names = [
        "UUID", "ZERO_UUID", "Message", "MetadataRecord", "RecordBuffers", "RecordKey",
        "RecordValue", "Records", "Struct", *NUMBERS, "in_versions",
    ]  # fmt: skip
    imported = [name for name in names if _mentions(text, name)]
    return (
        f'"""{title}\n\n'
        "Written by tools/generate_messages.py from the schemas of Apache Kafka "
        f"{VERSION}; not edited by hand.\n"
        '"""\n\n'
        "from __future__ import annotations\n\n"
        f"from wire.message import {', '.join(sorted(imported))}\n\n\n"
    ) + text


def _mentions(text: str, name: str) -> bool:
    words = text
    for mark in '()[],|=":.+':
        words = words.replace(mark, " ")
    return name in words.split()


def name_structs(messages: list[tuple[Schema, VersionRange]]) -> list[Message]:
    """Give every struct a name of its own within the module.

    A second struct of a name another message has already is prefixed `Response` in a response, else
    with the last word of its message's name.
    """
    taken = {schema["name"] for schema, _ in messages}
    named = []
    for schema, versions in messages:
        names: dict[str, str] = {}
        for name in structs_of(schema, versions):
            ours = name
            if name in taken:
                prefix = "Response" if schema["type"] == "response" else last_word(schema["name"])
                ours = prefix + name
            assert ours not in taken, ours
            names[name] = ours
        taken |= set(names.values())
        named.append(Message(schema, versions, names))
    return named


def last_word(name: str) -> str:
    return name[max(index for index, letter in enumerate(name) if letter.isupper()) :]


def module_title(messages: list[Message]) -> str:
    """The first line of a module: what it is, and its versions."""
    first, last = messages[0], messages[-1]
    spans = f"versions {_span(first.versions)}"
    if first.versions != last.versions:
        spans += f", {last_word(last.name).lower()} {_span(last.versions)}"
    kind: str = first.schema["type"]
    if kind in ("request", "response"):
        name = first.name.removesuffix("Request").removesuffix("Response")
        return f"{name} (API key {first.schema['apiKey']}): {spans}."
    if kind.startswith("coordinator-"):
        name = first.name.removesuffix("Key").removesuffix("Value")
        return f"{name} (record type {first.schema['apiKey']}): {spans}."
    if kind == "metadata":
        return "Records of Apache Kafka's metadata log, __cluster_metadata: those read here."
    return f"{', '.join(message.name for message in messages)}: {spans}."


def _span(versions: VersionRange) -> str:
    if versions.first == versions.last:
        return str(versions.first)
    return f"{versions.first}-{versions.last}"


def group(schemas: dict[str, Schema]) -> dict[str, list[str]]:
    """Module path -> names of the messages it declares, in order."""
    modules: dict[str, list[str]] = {}
    for name, schema in sorted(schemas.items()):
        kind: str = schema["type"]
        if kind in ("request", "response"):
            path = "messages/" + snake_case(name.removesuffix("Request").removesuffix("Response"))
        elif kind == "header":
            path = "messages/header"
        elif kind.startswith("coordinator-"):
            path = "internal/" + snake_case(name.removesuffix("Key").removesuffix("Value"))
        elif kind == "metadata":
            path = "internal/cluster_metadata"
        elif name.startswith("ConsumerProtocol"):
            path = "internal/consumer_protocol"
        else:
            path = "internal/" + snake_case(name)
        modules.setdefault(path, []).append(name)
    return modules


def generate(out: Path) -> list[Path]:
    """Write every module below `out`, which is a `wire` package; return their paths."""
    schemas = read_schemas()
    written = []
    for path, names in group(schemas).items():
        found: list[tuple[Schema, VersionRange]] = []
        for name in names:
            request = schemas.get(name.replace("Response", "Request"))
            first, last = stable_versions(schemas[name], request)
            found.append((schemas[name], VersionRange(first, last)))
        messages = name_structs(found)
        target = out / f"{path}.py"
        target.parent.mkdir(exist_ok=True)
        target.write_text(module_text(module_title(messages), messages))
        written.append(target)
    ruff = [sys.executable, "-m", "ruff"]
    for work in (["format"], ["check", "--fix"], ["format"]):
        subprocess.run([*ruff, *work, "--quiet", "--config", RUFF_CONFIG, *written], check=True)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("wire"))
    options = parser.parse_args()
    generate(options.out)


if __name__ == "__main__":
    main()
