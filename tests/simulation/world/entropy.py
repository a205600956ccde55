"""The operating system's random bytes, drawn from a seed: ids of topics, members, sessions."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random


@contextmanager
def seeded_entropy(source: Random) -> Iterator[None]:
    """Let `os.urandom`, `uuid4` and `secrets` draw from `source`."""
    real, real_of_random = os.urandom, random._urandom  # type: ignore[attr-defined]  # its own name
    os.urandom = random._urandom = source.randbytes  # type: ignore[attr-defined]  # as above
    try:
        yield
    finally:
        os.urandom, random._urandom = real, real_of_random  # type: ignore[attr-defined]  # as above
