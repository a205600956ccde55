"""Byte for byte what two other implementations write: kio, and kafka-python's protocol module.

Each reads our bytes and writes them again; the bytes must be ours. Compared where they know the
message and its version. (kio's reader may end the process on malformed bytes, so it is shown
well-formed ones only.)
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from tests.wire.message_strategies import CASES, case_id, few, messages
from tools.kafka_schemas import snake_case
from wire.internal.versioned import encode_versioned

#: Reads a message of ours at its version and writes it again.
Oracle = Callable[[Any], tuple[bytes, bytes]]

with warnings.catch_warnings():
    # It reads its schemas with a function that Python deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    KAFKA_PYTHON_PACKAGES = [
        import_module(f"kafka.protocol.{part}")
        for part in ("admin", "consumer", "metadata", "producer", "sasl")
    ]


def kio_path(message: Any, version: int) -> str | None:
    """`module:class` of kio for a message at a version, or None where it has none."""
    name = message.__name__
    folder = snake_case(name.removesuffix("Request").removesuffix("Response"))
    paths = schema_name_map.get(folder, {}).get(version, {}).values()
    return next((path for path in paths if path.endswith(f":{name}")), None)


def kio(message: Any, version: int) -> Oracle | None:
    path = kio_path(message, version)
    if path is None:
        return None
    theirs = pkgutil.resolve_name(path)
    read, write = entity_reader(theirs), entity_writer(theirs)

    def rewrite(value: Any) -> tuple[bytes, bytes]:
        encoded = value.encode(version)
        parsed, size = read(encoded, 0)
        assert size == len(encoded)
        written = BytesIO()
        write(written, parsed)
        return encoded, written.getvalue()

    return rewrite


def kafka_python_class(message: Any, version: int) -> Any | None:
    """kafka-python's class for a message, or None where it lacks it or this version of it."""
    for package in KAFKA_PYTHON_PACKAGES:
        found = getattr(package, message.__name__, None)
        if found is not None:
            return found if version <= found.max_version else None
    return None


def kafka_python(message: Any, version: int) -> Oracle | None:
    theirs = kafka_python_class(message, version)
    if theirs is None:
        return None
    is_api = message.api_key >= 0

    def rewrite(value: Any) -> tuple[bytes, bytes]:
        if message.__name__ == "ApiVersionsResponse":
            value.error_code = 0  # theirs takes any other for an answer in version 0
        # Theirs of ConsumerProtocol* reads and writes the version that stands before the message.
        encoded = value.encode(version) if is_api else encode_versioned(value, version)
        parsed = theirs.decode(encoded, version=version)
        if is_api:
            parsed._header = None  # its decoder leaves it unset, its encoder asks for it
        return encoded, bytes(parsed.encode())

    return rewrite


KNOWN = [case for case in CASES if kio_path(*case) or kafka_python_class(*case)]


@pytest.mark.parametrize(("message", "version"), KNOWN, ids=case_id)
def test_other_libraries_write_the_same_bytes(message: Any, version: int) -> None:
    oracles = [oracle for find in (kio, kafka_python) if (oracle := find(message, version))]

    @few(3)
    @given(messages(message, version, tame=True))
    def check(value: Any) -> None:
        for rewrite in oracles:
            ours, theirs = rewrite(value)
            assert theirs == ours, rewrite

    check()


def test_the_oracles_know_most_messages() -> None:
    assert len([case for case in CASES if kio_path(*case)]) > 500
    assert len([case for case in CASES if kafka_python_class(*case)]) > 450
