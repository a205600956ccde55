"""Which member has which partitions: consumers of librdkafka, polled until they have all."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

from compat_tests.client import TIMEOUT_S

#: How many partitions the tests of groups give their topics.
PARTITIONS = 4
_POLL_S = 0.02


def settle(*members: Consumer, partitions: int = PARTITIONS) -> list[set[int]]:
    """Poll all members until together they have every partition of a topic once; return these."""
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while True:
        for member in members:
            member.poll(_POLL_S)
        owned = [{each.partition for each in member.assignment()} for member in members]
        if all(owned) and sorted(p for each in owned for p in each) == list(range(partitions)):
            return owned
        assert time.monotonic() < deadline, f"never settled: {owned}"


def await_partitions(member: Consumer, count: int) -> None:
    """Poll a member until it has `count` partitions. Other members may have the rest."""
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while len(owned := member.assignment()) != count:
        assert time.monotonic() < deadline, owned
        member.poll(_POLL_S)
