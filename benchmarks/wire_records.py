"""What a record batch costs in `wire.records`: `python -m benchmarks.wire_records` prints a table.

Times are the best of several runs, per call; MB/s count the uncompressed records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import Timer

from wire.records import (
    BatchHeader,
    Compression,
    SimpleRecord,
    build_batch,
    build_marker,
    crc_ok,
    iterate_records,
    parse_marker,
    place,
    validate_batch,
    validate_records,
)

RUNS = 5


def seconds_per_call(work: Callable[[], object]) -> float:
    timer = Timer(work)
    calls, _ = timer.autorange()
    calls = max(1, calls // 4)
    return min(timer.repeat(RUNS, calls)) / calls


def row(name: str, work: Callable[[], object], size_bytes: int = 0, records: int = 0) -> None:
    seconds = seconds_per_call(work)
    rate = f"{size_bytes / seconds / 1e6:9.0f}" if size_bytes else f"{'':9}"
    each = f"{seconds / records * 1e6:9.2f}" if records else f"{'':9}"
    print(f"{name:44} {seconds * 1e6:10.2f} {rate} {each}")


def simple_records(count: int, size_bytes: int) -> list[SimpleRecord]:
    # Text-like values, so that codecs have something to find and something to keep.
    words = b" ".join(b"%d" % (number * number % 9973) for number in range(size_bytes))
    return [
        SimpleRecord(b"key-%d" % number, words[number : number + size_bytes], 1_700_000_000_000)
        for number in range(count)
    ]


def coordinator_rows() -> None:
    one = [SimpleRecord(b"k" * 20, b"v" * 80, 1_700_000_000_000)]
    batch = build_batch(one)

    def marker() -> bytearray:
        return build_marker(
            base_offset=1,
            producer_id=2,
            producer_epoch=3,
            coordinator_epoch=4,
            commit=True,
            timestamp_ms=5,
        )

    marked = marker()
    row("build_batch, one record of 100 bytes", lambda: build_batch(one), len(batch), 1)
    row("iterate_records of it", lambda: list(iterate_records(batch)), len(batch), 1)
    row("build_marker", marker)
    row("parse_marker", lambda: parse_marker(marked))


def broker_rows() -> None:
    for count, size_bytes in ((1, 100), (160, 100), (1000, 1000)):
        batch = build_batch(simple_records(count, size_bytes))
        shape = f"{count} x {size_bytes} B"
        row(f"BatchHeader.parse, {shape}", partial(BatchHeader.parse, batch))
        row(f"crc_ok, {shape}", partial(crc_ok, batch), len(batch))
        row(f"validate_batch, {shape}", partial(validate_batch, batch), len(batch))
        row(f"place, {shape}", partial(place, batch, 0, 0))


def walk_rows() -> None:
    kinds = {
        "equal": [100] * 5000,
        "different": [60 + number % 240 for number in range(5000)],
        "large": [10_240 + number % 2 for number in range(100)],
        "one": [100],
    }
    for name, sizes in kinds.items():
        words = b"v" * max(sizes)
        simple = [
            SimpleRecord(b"key-%05d" % number, words[:size], 1_700_000_000_000)
            for number, size in enumerate(sizes)
        ]
        batch = build_batch(simple)
        work = partial(validate_records, BatchHeader.parse(batch), batch)
        row(f"validate_records, sizes: {name}", work, len(batch), len(simple))


def codec_rows() -> None:
    simple = simple_records(1000, 100)
    size_bytes = len(build_batch(simple))
    for codec in Compression:
        batch = build_batch(simple, compression=codec)
        name = codec.name.lower()
        row(
            f"build_batch, 1000 x 100 B, {name}",
            partial(build_batch, simple, compression=codec),
            size_bytes,
            1000,
        )
        row(
            f"validate_records, {name}, to {len(batch) / size_bytes:.0%}",
            partial(validate_records, BatchHeader.parse(batch), batch),
            size_bytes,
            1000,
        )


def main() -> None:
    print(f"{'':44} {'us a call':>10} {'MB/s':>9} {'us/record':>9}")
    coordinator_rows()
    broker_rows()
    walk_rows()
    codec_rows()


if __name__ == "__main__":
    main()
