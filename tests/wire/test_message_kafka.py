"""Byte for byte what Apache Kafka writes: its own classes read every message and write it again.

Covers what no other library knows: the records of the internal topics, nullable tagged structs,
unknown tags. One JVM reads all of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hypothesis import given

from tests.wire.message_strategies import CASES, few, messages
from tools.reference_kafka import java_command


def samples(message: Any, version: int) -> list[tuple[str, int, bytes]]:
    """(name, version, bytes) of a few messages of one kind and version."""
    found: list[tuple[str, int, bytes]] = []

    @few(3)
    @given(messages(message, version))
    def collect(value: Any) -> None:
        found.append((message.__name__, version, value.encode(version)))

    collect()
    return found


def test_kafka_reads_every_message_and_writes_the_same_bytes() -> None:
    sent = [sample for case in CASES for sample in samples(*case)]
    rewritten = subprocess.run(
        java_command(str(Path(__file__).with_name("KafkaRewriter.java"))),
        input="".join(f"{name} {version} ={data.hex()}\n" for name, version, data in sent),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    ).stdout.splitlines()
    wrong = [
        f"{name} v{version}: {data.hex()} became {line}"
        for (name, version, data), line in zip(sent, rewritten, strict=True)
        if line != f"={data.hex()} 0"
    ]
    assert wrong == []
