"""What members tell of what they read: unbroken stretches of offsets, before they commit."""

from __future__ import annotations

from collections.abc import Iterable

from compat_tests.pipeline.telling import tell

_RUNS_PER_LINE = 50

Run = tuple[str, int, int, int]
"""(topic, partition, first offset, end offset), exclusive."""


def tell_read(read: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], int]:
    """Tell (topic, partition, offset) of all that was read; return what to commit for it."""
    found = list(runs(read))
    for start in range(0, len(found), _RUNS_PER_LINE):
        tell("read", runs=found[start : start + _RUNS_PER_LINE])
    return {(topic, partition): end for topic, partition, _, end in found}


def runs(read: Iterable[tuple[str, int, int]]) -> Iterable[Run]:
    """Yield unbroken stretches of offsets, by topic and partition, in order."""
    stretch: Run | None = None
    for topic, partition, offset in sorted(read):
        if stretch is not None and stretch[:2] == (topic, partition) and stretch[3] == offset:
            stretch = (*stretch[:3], offset + 1)
            continue
        if stretch is not None:
            yield stretch
        stretch = (topic, partition, offset, offset + 1)
    if stretch is not None:
        yield stretch
