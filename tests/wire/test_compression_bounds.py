"""Every codec, in every dialect that clients write, within a bound that no stream gets over."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
from struct import pack

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import WireError
from wire.records import Compression
from wire.records.compression import InflatesTooFar, begins_like, compress, decompress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
XERIAL = b"\x82SNAPPY\0" + pack(">ii", 1, 1)
MEGABYTE = 1_000_000
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@every_codec
@given(data=st.binary(max_size=2000), repeats=st.integers(1, 60))
def test_what_is_compressed_is_decompressed(codec: Compression, data: bytes, repeats: int) -> None:
    data *= repeats
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(compressed))) == data


def test_no_compression_is_a_copy() -> None:
    assert compress(Compression.NONE, b"abc") == decompress(Compression.NONE, b"abc") == b"abc"


@every_codec
@pytest.mark.parametrize("size_bytes", [1, 16 * 1024, 16 * 1024 + 1, 300_000])
def test_the_bound_is_inclusive(codec: Compression, size_bytes: int) -> None:
    compressed = compress(codec, bytes(size_bytes))
    assert len(decompress(codec, compressed, size_bytes)) == size_bytes
    with pytest.raises(WireError, match="inflate to"):
        decompress(codec, compressed, size_bytes - 1)


@every_codec
def test_a_bomb_costs_no_more_than_the_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(200 * MEGABYTE))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="inflate to"):
            decompress(codec, bomb, MEGABYTE)
        assert tracemalloc.get_traced_memory()[1] < len(bomb) + 3 * MEGABYTE
    finally:
        tracemalloc.stop()


@every_codec
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 30),
    tail=st.binary(max_size=20),
)
def test_a_damaged_stream_is_a_wire_error_or_data(
    codec: Compression, edits: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    stream = bytearray(compress(codec, b"hello world " * 300))
    for position, byte in edits:
        stream[position % len(stream)] = byte
    with contextlib.suppress(WireError):
        decompress(codec, bytes(stream[: len(stream) - cut]) + tail, 10_000)


@every_codec
@given(garbage=st.binary(max_size=100))
def test_garbage_is_a_wire_error_or_data(codec: Compression, garbage: bytes) -> None:
    begins_like(codec, memoryview(garbage))
    with contextlib.suppress(WireError):
        decompress(codec, garbage, 10_000)


@every_codec
def test_a_cut_stream_is_a_wire_error(codec: Compression) -> None:
    stream = compress(codec, b"hello world " * 300)
    assert begins_like(codec, memoryview(stream))
    for size_bytes in range(1, len(stream)):
        if codec is Compression.SNAPPY and size_bytes == len(XERIAL):
            continue  # a header without blocks: the stream of no bytes
        with pytest.raises(WireError):
            decompress(codec, stream[:size_bytes], 10_000)


def test_snappy_without_a_frame_is_read() -> None:
    data = b"hello world " * 300
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert begins_like(Compression.SNAPPY, memoryview(raw))
    assert decompress(Compression.SNAPPY, raw) == data


def test_snappy_is_written_in_the_blocks_of_snappy_java() -> None:
    compressed = compress(Compression.SNAPPY, bytes(range(256)) * 256)
    assert compressed.startswith(XERIAL)
    first = int.from_bytes(compressed[16:20], "big")
    assert len(cramjam.snappy.decompress_raw(compressed[20 : 20 + first])) == 32 * 1024


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (XERIAL + b"\0\0\0", "without its length"),
        (XERIAL + pack(">i", 5) + b"abcd", "a block of 5 bytes, 4 remain"),
        (XERIAL + pack(">i", -1), "a block of -1 bytes"),
        (XERIAL[:12], "a header of 12 bytes"),
        (XERIAL + pack(">i", 5) + b"\xff\xff\xff\xff\x0f", "claim to inflate to 4294967295"),
        (b"\xff\xff\xff\xff\x0f", "claim to inflate to 4294967295"),
    ],
)
def test_lying_snappy_is_a_wire_error(stream: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decompress(Compression.SNAPPY, stream)


def test_blocks_together_stay_within_the_bound() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    stream = XERIAL + 3 * (pack(">i", len(block)) + block)
    assert len(decompress(Compression.SNAPPY, stream, 3000)) == 3000
    with pytest.raises(WireError, match="inflate to"):
        decompress(Compression.SNAPPY, stream, 2999)


@pytest.mark.parametrize("block_linked", [True, False])
@pytest.mark.parametrize("content_checksum", [True, False])
def test_every_dialect_of_lz4_frames_is_read(block_linked: bool, content_checksum: bool) -> None:
    data = bytes(range(256)) * 1000
    compressor = cramjam.lz4.Compressor(
        block_linked=block_linked, content_checksum=content_checksum
    )
    compressor.compress(data)
    assert decompress(Compression.LZ4, bytes(compressor.finish())) == data


def test_lz4_frames_are_written_with_independent_blocks() -> None:
    # Java's reader knows no others. Bit 5 of the frame's flags.
    assert compress(Compression.LZ4, b"hello" * 100_000)[4] & 0x20


def test_gzip_of_several_members_is_read() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd")) == b"abcd"


def test_snappy_has_no_more_blocks_than_its_bytes_could_have() -> None:
    empty = pack(">i", 1) + b"\x00"
    assert decompress(Compression.SNAPPY, XERIAL + 65 * empty, 64 * 1024) == b""
    with pytest.raises(InflatesTooFar, match="more than 65 blocks"):
        decompress(Compression.SNAPPY, XERIAL + 66 * empty, 64 * 1024)


@pytest.mark.parametrize("codec", [each for each in Compression if each is not Compression.NONE])
def test_what_is_large_is_not_copied(codec: Compression) -> None:
    # A copy of 64 MiB, and the clearing of a buffer for it, would each hold all threads for 40 ms.
    size_bytes = 2 * MEGABYTE
    compressed = compress(codec, bytes(size_bytes))
    tracemalloc.start()
    try:
        decompressed = decompress(codec, compressed)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decompressed == bytes(size_bytes)
    assert peak_bytes < MEGABYTE
