"""A load is fetched in parts, each of which a slow network brings within a read's time limit."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.remote.postgres_store import _in_parts

MIB = 1 << 20


class Cursor:
    """A reader, and the cursor that it opens. Counts what each part has."""

    def __init__(self, sizes: list[int]) -> None:
        # One object for each size: a thousand rows of a MiB need no GiB.
        data = {size: bytes(size) for size in {*sizes}}
        self.rows = [(number, data[size]) for number, size in enumerate(sizes)]
        self.parts: list[int] = []
        self._at = 0

    async def cursor(self, *_: object) -> Cursor:
        return self

    async def fetch(self, count: int) -> list[Any]:
        found = self.rows[self._at : self._at + count]
        self._at += count
        self.parts.append(sum(len(data) for _, data in found))
        return found


@pytest.mark.parametrize(
    "sizes",
    [[200] * 5_000 + [MIB] * 1_000, [MIB] * 50, [0] * 1_000, [200] * 20_000, []],
    ids=["small ones first", "large", "empty", "small", "none"],
)
async def test_all_rows_come_and_no_part_is_too_large(sizes: list[int]) -> None:
    cursor = Cursor(sizes)
    assert await _in_parts(cursor, "") == cursor.rows
    # 30 seconds at 4.5 MB/s.
    assert max(cursor.parts) <= 128 * MIB
    assert len(cursor.parts) <= len(sizes) // 100 + sum(sizes) // (2 * MIB) + 5
