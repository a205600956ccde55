"""What a clean stop keeps of a log's segments, so that the next start opens none of their files."""

from __future__ import annotations

from typing import NamedTuple


class ClosedSegments(NamedTuple):
    """The segments of a log that was closed with everything durable."""

    #: Base offset and size in bytes, ascending; never empty.
    segments: list[tuple[int, int]]
    end_offset: int
    #: The largest timestamp in the last segment, -1: no record has one; and the last offset of the
    #: batch that has it.
    max_timestamp_ms: int
    offset_of_max_timestamp: int
