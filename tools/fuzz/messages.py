"""Messages of the protocol and of internal topics, in every version, through the decoders.

An input is the message's name, a newline, the version in two bytes, and the message's bytes.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from random import Random

import wire.internal
import wire.messages
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from tools.fuzz.values import message
from wire.errors import WireError
from wire.message import Message


@cache
def declared() -> dict[str, type[Message]]:
    """Return every declared message by its name."""
    found: dict[str, type[Message]] = {}
    for package in (wire.messages, wire.internal):
        for info in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{info.name}")
            for name, value in vars(module).items():
                is_class = isinstance(value, type) and issubclass(value, Message)
                if is_class and value.__module__ == module.__name__:
                    found[name] = value
    return found


def _generate(random: Random) -> bytes:
    name = random.choice(sorted(declared()))
    cls = declared()[name]
    version = random.randint(cls.min_version, max(cls.min_version, cls.max_version))
    try:
        data: bytes = message(random, cls, version, {}).encode(version)
    except WireError:
        # Some values cannot be sent in every version: that is said, not sent.
        data = cls().encode(version) if cls.max_version >= 0 else b""
    if random.random() < 0.7:
        data = mutated(random, data)
    return name.encode() + b"\n" + version.to_bytes(2, "big") + data


def _run(given: bytes) -> None:
    name, _, rest = given.partition(b"\n")
    cls = declared()[name.decode()]
    version, data = int.from_bytes(rest[:2], "big"), rest[2:]
    if not cls.min_version <= version <= cls.max_version:
        return
    try:
        value = cls.decode(memoryview(data), version)
    except WireError:
        return
    # Compared as bytes: a NaN is not equal to itself.
    again = value.encode(version)
    judge(
        cls.decode(again, version).encode(version) == again,
        "a message that was read is written and read as the same",
    )


TARGET = Target("messages", _generate, _run)
