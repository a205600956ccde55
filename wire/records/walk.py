"""The records of a produced batch, checked one after the other without decoding them.

Owns which errors a record's bytes may have: lengths, offset deltas, what a compacted topic and the
bounds of timestamps ask for. A batch of a megabyte has ten thousand records, and the event loop
checks them. So common records are checked in faster ways than others:

- `_is_plain` recognises a batch of one plain record.
- `_Walk.one` checks any record, and returns its shape.
- `_Walk.alike` checks at once all the records behind it that have the same shape. In each of them
  the bytes that say how long something is stand at the same place, so a slice with a step holds
  these bytes of all records.
- `_Walk.usual` checks records of different sizes, or few records, in a tight loop up to the first
  unusual one. `_Walk.large` does the same for records from 8 KiB on.

What a check costs depends on the records: a client can make all of them unusual, or give one half a
million headers. So the walk counts its steps, and raises TakesManySteps at the caller's limit.

Source: Kafka's LogValidator and DefaultRecord.readFrom.
"""

from __future__ import annotations

import re
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from wire.error_code import ErrorCode
from wire.errors import KafkaError, RecordsRefused, WireError
from wire.records.header import NO_TIMESTAMP, BatchHeader
from wire.records.varint import read_varint, read_varlong
from wire.records.varint_bytes import (
    STEPS,
    STEPS_NOT_NULL,
    first_bytes,
    heads,
    large_head,
    offset_columns,
    same_width_end,
    step_of_three_bytes,
    steps_of_two_bytes,
    width_of_offset,
)
from wire.types import INT32_MAX

#: Six fields of a byte each behind a length of one byte.
RECORD_BYTES_MIN = 7
#: How many refused records of a batch a refusal names.
REFUSED_NAMED_MAX = 1_000
WITHOUT_KEY = "Compacted topic cannot accept message without key in topic partition {partition}"

#: No batch may take more steps: some seconds of work, in a thread. The headers alone of a batch of
#: 64 MiB could take a minute.
STEPS_MAX = 1 << 25
#: A step is a tenth of a microsecond: what `_Walk.usual` takes for a record, or for one field of a
#: header. `_Walk.one` takes so many steps for a record, and so many for each of its headers.
_STEPS_OF_ONE = 32
_STEPS_OF_HEADER = 6
#: A record with more headers is compared with no other: its shape would take a hundred bytes for
#: each header.
_HEADERS_COMPARED_MAX = 32
#: How many records of different sizes are checked before the walk looks for equal ones again.
_USUAL_MIN = 64
#: To look at fewer records one by one costs less than to look for equal ones.
_MANY = 24
#: Shorter records are copied first: a slice with a step takes five times as long on a view.
_COPIED_BYTES_MAX = 512
#: How many equal records `_Walk.alike` looks for at first. If all of these are equal, it looks for
#: so many times more the next time. Else a client could make each look go far and find nothing.
_AHEAD_MIN = 64
_AHEAD_GROWTH = 32
_THREE_BYTES = Struct(">HB")
#: The head of a lone record: its length, which takes two bytes or one, then timestamp and offset
#: together, then the first byte of its key's length.
_LONE_BEHIND_TWO = Struct(">HxHB").unpack_from
_LONE_BEHIND_ONE = Struct(">BxHB").unpack_from
#: How many records `_Walk.usual` passes over at most: to list their offsets costs as much as three
#: records do, and must not be wasted where the next record is unusual.
_USUAL_RUN_MAX = 1024
#: The length of a usual record takes two bytes at most, so the record is shorter than this.
_USUAL_BYTES_MAX = 2**13


class TakesManySteps(Exception):
    """The check of a batch needs more steps than the caller allows."""


class RecordRules(NamedTuple):
    """What a topic asks of each record; without arguments: nothing."""

    key_required: bool = False
    #: Both inclusive, ms. A record without a timestamp (-1) is never refused.
    timestamp_min: int = -(2**64)
    timestamp_max: int = 2**64
    #: The largest record, without its length: `max.decompressed.message.bytes`.
    record_bytes_max: int = INT32_MAX


NO_RULES = RecordRules()


class _Shape(NamedTuple):
    """Where the fields of one record lie, counted from its first byte."""

    size_bytes: int
    timestamp_at: int
    offset_at: int
    key_at: int
    #: The bytes that say how long something is; equal in records of this shape.
    lengths_at: list[int]


def check_records(
    body: bytes | memoryview, header: BatchHeader, rules: RecordRules, steps_max: int = STEPS_MAX
) -> None:
    """Check the records of a batch, decompressed, against its header and the topic's rules.

    Raises INVALID_RECORD where the bytes are not the records that the header announces,
    RecordsRefused for records that the topic does not take, and TakesManySteps.
    """
    count = header.record_count
    if count == 1 and _is_plain(body, header.base_timestamp, rules):
        return
    if count * RECORD_BYTES_MIN > len(body):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records in {len(body)} bytes")
    walk = _Walk(body, header, rules, steps_max)
    try:
        if count < _MANY:
            walk.usual(1, count)
        while walk.index < count:
            shape = walk.one()
            if shape is not None and walk.index < count:
                walk.pass_over(shape, count)
    except WireError as failure:
        detail = f"record {walk.index} of {count}: {failure}"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail) from None
    if (left := len(body) - walk.position) > 0:
        detail = f"{left} bytes after the last of {count} records"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    if left < 0:
        detail = f"the last of {count} records is {-left} bytes longer than what remains"
        raise KafkaError(ErrorCode.INVALID_RECORD, detail)
    walk.refuse_flawed()


def _is_plain(body: bytes | memoryview, timestamp: int, rules: RecordRules) -> bool:
    """Whether `body` is one valid record as most clients send one alone.

    It has the batch's timestamp, no headers, and lengths of one byte, or two where it is the
    record's or the value's. Any other record is for the walk to look at.
    """
    key_required, timestamp_min, timestamp_max, record_bytes_max = rules
    if not timestamp_min <= timestamp <= timestamp_max:
        return False
    keys = STEPS_NOT_NULL if key_required else STEPS
    lengths, size = steps_of_two_bytes(), len(body)
    try:
        length, zeros, key = _LONE_BEHIND_TWO(body)
        at = 5
        if length < 0x8000:
            length, zeros, key = _LONE_BEHIND_ONE(body)
            at = 4
        at += keys[key]
        byte = body[at]
        at += STEPS[byte] if byte < 0x80 else lengths[byte << 8 | body[at + 1]]
        is_whole = at + 1 == size == lengths[length]
        return is_whole and not (zeros or body[at]) and size <= record_bytes_max
    except (IndexError, StructError):
        return False


class _Walk:
    """The way through one batch: everything before `position` is `index` valid records."""

    __slots__ = (
        "_ahead",
        "_base_timestamp",
        "_body",
        "_flaws",
        "_flaws_count",
        "_has_late",
        "_rules",
        "_steps_left",
        "_timestamp_width",
        "index",
        "position",
    )

    def __init__(
        self, body: bytes | memoryview, header: BatchHeader, rules: RecordRules, steps_max: int
    ) -> None:
        self.position = self.index = 0
        self._ahead = _AHEAD_MIN
        self._steps_left = steps_max
        self._body = body
        self._base_timestamp = header.base_timestamp
        self._rules = rules
        self._flaws: list[tuple[int, str]] = []
        self._flaws_count = 0
        self._has_late = False
        #: Timestamp deltas of so many bytes are within the bounds, whatever they say.
        self._timestamp_width = 0
        if header.record_count > 1:
            base = header.base_timestamp
            self._timestamp_width = _safe_width(
                rules.timestamp_min - base, rules.timestamp_max - base
            )

    def one(self) -> _Shape | None:
        """Check the next record, and return its shape; None: compare no other with it.

        Raises WireError, TakesManySteps.
        """
        self._take_steps(_STEPS_OF_ONE)
        body, start = self._body, self.position
        length, position = read_varint(body, start)
        end = position + length
        if length < 0 or end > len(body):
            raise WireError(f"{length} bytes long, {len(body) - position} remain")
        if length > self._rules.record_bytes_max:
            raise WireError(f"{length} bytes long, at most {self._rules.record_bytes_max}")
        # No reader looks at the attributes, the byte before the timestamp.
        timestamp_at = position + 1
        delta, offset_at = read_varlong(body, timestamp_at)
        offset_delta, key_at = read_varint(body, offset_at)
        if offset_delta != self.index:
            raise WireError(f"offset delta {offset_delta}")
        lengths_at = [*range(position - start)]
        position = _past(body, key_at, end, start, lengths_at)
        position = _past(body, position, end, start, lengths_at)
        header_count, fields_at = read_varint(body, position)
        # A header has at least two bytes: its lengths.
        if not 0 <= header_count <= (end - fields_at) // 2:
            raise WireError(f"{header_count} headers in {end - fields_at} bytes")
        lengths_at += range(position - start, fields_at - start)
        position = fields_at
        # Before the headers are read, which is the work that the limit is to prevent.
        self._take_steps(_STEPS_OF_HEADER * header_count)
        is_compared = header_count <= _HEADERS_COMPARED_MAX
        of_headers_at = lengths_at if is_compared else None
        for _ in range(header_count):
            position = _past(body, position, end, start, of_headers_at, is_nullable=False)
            position = _past(body, position, end, start, of_headers_at)
        if position != end:
            raise WireError(f"{length} bytes long, but its fields end {end - position} before")
        # The lowest bit is the sign, and the one negative length is null. It may have more bytes.
        self._look_for_flaws(delta, bool(body[key_at] & 1))
        self.position = end
        self.index += 1
        if not is_compared:
            return None
        return _Shape(
            end - start, timestamp_at - start, offset_at - start, key_at - start, lengths_at
        )

    def _take_steps(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise TakesManySteps(f"record {self.index} is as far as the check of this batch comes")

    def _look_for_flaws(self, timestamp_delta: int, is_key_null: bool) -> None:
        """Note why the topic does not take a record, if so. As in Kafka, its first flaw counts."""
        rules, timestamp = self._rules, self._base_timestamp + timestamp_delta
        if is_key_null and rules.key_required:
            reason = WITHOUT_KEY
        elif timestamp == NO_TIMESTAMP or (rules.timestamp_min <= timestamp <= rules.timestamp_max):
            return
        else:
            self._has_late = True
            reason = (
                f"Timestamp {timestamp} of message with offset {self.index} is out of range. The"
                f" timestamp should be within [{rules.timestamp_min}, {rules.timestamp_max}]"
            )
        self._flaws_count += 1
        if len(self._flaws) < REFUSED_NAMED_MAX:
            self._flaws.append((self.index, reason))

    def refuse_flawed(self) -> None:
        """Raise RecordsRefused if any record was flawed."""
        if self._flaws_count:
            code = ErrorCode.INVALID_TIMESTAMP if self._has_late else ErrorCode.INVALID_RECORD
            raise RecordsRefused(code, self._flaws, self._flaws_count)

    def pass_over(self, shape: _Shape, count: int) -> None:
        """Pass over valid records that follow one of this shape, if they can be checked faster."""
        body, start = self._body, self.position
        # Between a record's length and its timestamp are the attributes: a byte.
        length_bytes, last = shape.timestamp_at - 1, start - shape.size_bytes
        is_as_long = body[start : start + length_bytes] == body[last : last + length_bytes]
        if is_as_long and self.alike(shape, count):
            return
        timestamp_bytes = shape.offset_at - shape.timestamp_at
        if shape.size_bytes < _USUAL_BYTES_MAX:
            self.usual(timestamp_bytes, count)
        else:
            self.large(timestamp_bytes, count)

    def alike(self, shape: _Shape, count: int) -> bool:
        """Pass over the valid records that follow in the shape of the last one, if any do."""
        body, size, first = self._body, shape.size_bytes, self.index - 1
        begin = self.position - size
        # The last record, which is valid, is the first one of the run.
        looked = number = min(
            count - first,
            (len(body) - begin) // size,
            same_width_end(first) - first,
            self._ahead,
        )
        self._ahead = _AHEAD_MIN
        if (
            number < 2
            or width_of_offset(first) != shape.key_at - shape.offset_at
            or shape.offset_at - shape.timestamp_at > self._timestamp_width
            or (self._rules.key_required and body[begin + shape.key_at] & 1)
        ):
            return False
        run: bytes | memoryview = memoryview(body)[begin : begin + number * size]
        if size < _COPIED_BYTES_MAX:
            run = bytes(run)
        for at in shape.lengths_at:
            column = run[at : number * size : size]
            same = bytes(column[:1])
            if column != same * number:
                number -= len(bytes(column).lstrip(same))
        for at in range(shape.timestamp_at, shape.offset_at):
            column = bytes(run[at : number * size : size])
            is_last_byte = at == shape.offset_at - 1
            # The last byte of a varint is below 0x80, and most timestamps have that byte alone.
            if not (is_last_byte and column.isascii()):
                found = (_LAST_BYTES if is_last_byte else _FIRST_BYTES).match(column)
                assert found is not None, "the pattern matches nothing, too"
                number = found.end()
        if number < 2 or _offsets_differ(run, shape.offset_at, size, first, number):
            return False
        if number == looked:
            self._ahead = max(_AHEAD_MIN, _AHEAD_GROWTH * looked)
        self.position = begin + number * size
        self.index = first + number
        return True

    def usual(self, timestamp_bytes: int, count: int) -> None:
        """Pass over the valid records that follow, up to an unusual one or several equal ones.

        A record is usual if its timestamp takes `timestamp_bytes`, the lengths in its headers one
        byte, and its other lengths at most two. `one` says what is wrong with a record.
        """
        body, position, index = self._body, self.position, self.index
        offset_bytes = width_of_offset(index)
        if (
            self._rules.record_bytes_max < _USUAL_BYTES_MAX
            or timestamp_bytes > min(self._timestamp_width, 2)
            or not offset_bytes
        ):
            return
        keys = STEPS_NOT_NULL if self._rules.key_required else STEPS
        steps, lengths = STEPS, steps_of_two_bytes()
        behind_two, behind_one = heads(timestamp_bytes, offset_bytes)
        last_byte = index >> 13 if offset_bytes == 3 else b""
        mask, wanted = (0x80, 0) if timestamp_bytes == 1 else (0x8080, 0x8000)
        to_key = 3 + timestamp_bytes + offset_bytes
        look_again, size = index + _USUAL_MIN, 0
        steps_left = self._steps_left
        end_index = min(count, index + min(steps_left, _USUAL_RUN_MAX))
        try:
            for offset in first_bytes(offset_bytes)[index & 8191 : end_index - (index & ~8191)]:
                length, timestamp, told, rest, key = behind_two(body, position)
                at = position + to_key
                if length < 0x8000:
                    length, timestamp, told, rest, key = behind_one(body, position)
                    at -= 1
                if told != offset or rest != last_byte or timestamp & mask != wanted:
                    break
                at += keys[key] if key < 0x80 else lengths[key << 8 | body[at + 1]]
                byte = body[at]
                at += steps[byte] if byte < 0x80 else lengths[byte << 8 | body[at + 1]]
                if fields := body[at]:
                    steps_left -= fields
                    at = _past_headers(body, at)
                else:
                    at += 1
                end = position + lengths[length]
                if at != end or (end - position == size and index > look_again) or steps_left < 0:
                    break
                size = end - position
                position = end
                index += 1
        except (IndexError, StructError):
            pass  # A length that leads out of the body, or its last few bytes.
        self._steps_left = steps_left - (index - self.index)
        self.position, self.index = position, index

    def large(self, timestamp_bytes: int, count: int) -> None:
        """Pass over the valid records that follow, up to an unusual one.

        Here a record is usual if its timestamp takes `timestamp_bytes`, the lengths of its key and
        in its headers one byte, its other lengths three. `one` says what is wrong with a record.
        """
        body, position, index = self._body, self.position, self.index
        offset_bytes = width_of_offset(index)
        # A batch with an offset delta of three bytes would have 64 MiB of such records.
        if timestamp_bytes > min(self._timestamp_width, 2) or not 1 <= offset_bytes <= 2:
            return
        keys = STEPS_NOT_NULL if self._rules.key_required else STEPS
        head = large_head(timestamp_bytes, offset_bytes)
        mask, wanted = (0x80, 0) if timestamp_bytes == 1 else (0x8080, 0x8000)
        to_key = 4 + timestamp_bytes + offset_bytes
        size_max = 3 + self._rules.record_bytes_max
        steps_left = self._steps_left
        end_index = min(count, index + min(steps_left, _USUAL_RUN_MAX))
        try:
            for offset in first_bytes(offset_bytes)[index:end_index]:
                low, high, timestamp, told, _, key = head(body, position)
                size = step_of_three_bytes(low, high)
                at = position + to_key + keys[key]
                at += step_of_three_bytes(*_THREE_BYTES.unpack_from(body, at))
                if told != offset or timestamp & mask != wanted:
                    break
                if fields := body[at]:
                    steps_left -= fields
                    at = _past_headers(body, at)
                else:
                    at += 1
                if at != position + size or size > size_max or steps_left < 0:
                    break
                position += size
                index += 1
        except (IndexError, StructError):
            pass  # A length that leads out of the body, or its last few bytes.
        self._steps_left = steps_left - (index - self.index)
        self.position, self.index = position, index


def _past(
    body: bytes | memoryview,
    position: int,
    end: int,
    start: int,
    lengths_at: list[int] | None,
    *,
    is_nullable: bool = True,
) -> int:
    """Return the position behind the field at `position`; note the place of its length."""
    length, at = read_varint(body, position)
    if lengths_at is not None:
        lengths_at += range(position - start, at - start)
    if length == -1 and is_nullable:
        return at
    if not 0 <= length <= end - at:
        raise WireError(f"a field of {length} bytes, {end - at} remain in the record")
    return at + length


def _past_headers(body: bytes | memoryview, position: int) -> int:
    """Return the position behind usual headers; for other headers, one at which no record ends."""
    # A count's zigzag is twice the count: the number of fields.
    fields = body[position]
    position += 1
    if fields & 0x81:
        return -1
    for field in range(fields):
        position += (STEPS if field & 1 else STEPS_NOT_NULL)[body[position]]
    return position


# Varints over many records: all bytes but the last one have their highest bit set.
_FIRST_BYTES = re.compile(rb"[\x80-\xff]*")
_LAST_BYTES = re.compile(rb"[\x00-\x7f]*")


def _offsets_differ(
    run: bytes | memoryview, offset_at: int, size: int, index: int, number: int
) -> bool:
    """Whether the offset deltas of `number` records do not count up from `index`."""
    return any(
        run[offset_at + place : number * size : size] != column
        for place, column in enumerate(offset_columns(index, number))
    )


def _safe_width(delta_min: int, delta_max: int) -> int:
    """Return how many bytes a varlong may have so that its value is within the bounds for sure."""
    # So many bytes hold the values in [-bound, bound) for a bound of 1 << (7 * width - 1).
    bound = min(-delta_min, delta_max + 1)
    return min(bound.bit_length() // 7, 9) if bound > 0 else 0
