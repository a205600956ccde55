"""Searches by time, in threads of their own and in turns, so that none keeps others waiting.

The max timestamp in a batch's header is its producer's word. So a search may have to look at every
record of many batches, ten million records in each, and find nothing. It gives up its thread after
each turn; between turns others have theirs, and a search whose client has gone ends. A batch of
very many records is searched in a thread for such batches alone, where it takes some seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.disk.pools import Pool
from logstore.segments.ledger import TimestampOffset
from logstore.segments.segment_reads import Readable, scan
from logstore.segments.timestamps import first_record_since, may_hold_since
from wire.error_code import ErrorCode
from wire.records import BatchHeader

SEARCHES = Pool("searches", 2, 1000, ErrorCode.KAFKA_STORAGE_ERROR)
LONG_SEARCHES = Pool("long-searches", 1)
#: Records looked at in one turn: some 40 ms.
_RECORDS_OF_A_TURN = 1 << 15
#: Bytes of batches that are passed over in one turn.
_BYTES_OF_A_TURN = 16 << 20


class _Turn(NamedTuple):
    """What a turn has found, or where the next one begins; else there is no such record."""

    found: TimestampOffset | None
    next_position: int = -1
    is_long: bool = False
    """Whether the batch there is searched alone."""


def pool_for(header: BatchHeader) -> Pool:
    """Return where the records of a batch are searched."""
    return LONG_SEARCHES if header.record_count > _RECORDS_OF_A_TURN else SEARCHES


async def first_in_file(
    file: Readable, position: int, size: int, timestamp_ms: int, start_offset: int
) -> TimestampOffset | None:
    """Return the first record at or after `start_offset` that is not before `timestamp_ms`.

    Looks from `position` of a segment's file up to its `size`. Raises KafkaError where too many
    searches are under way.
    """

    def search() -> _Turn:
        return _search(file, turn, size, timestamp_ms, start_offset)

    turn = _Turn(None, position)
    with SEARCHES.place():
        while turn.next_position >= 0:
            pool = LONG_SEARCHES if turn.is_long else SEARCHES
            turn = await pool.turn(search)
    return turn.found


def _search(file: Readable, turn: _Turn, size: int, timestamp_ms: int, start_offset: int) -> _Turn:
    """Search for one turn from where `turn` has ended. Blocks."""
    begin, records = turn.next_position, 0
    for position, header, batch in scan(file, begin, size, whole=True):
        if not may_hold_since(header, timestamp_ms, start_offset):
            if position - begin > _BYTES_OF_A_TURN:
                return _Turn(None, position)
            continue
        is_long = pool_for(header) is LONG_SEARCHES
        records += header.record_count
        if is_long != turn.is_long or (records > _RECORDS_OF_A_TURN and position != begin):
            return _Turn(None, position, is_long)
        found = first_record_since(batch, header, timestamp_ms, start_offset)
        if found is not None:
            return _Turn(found)
    return _Turn(None)
