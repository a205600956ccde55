"""Compressing and decompressing the records of a batch, within a bound, through one library.

Decompression writes into a buffer of a fixed size that grows up to the caller's bound, so a few
bytes that inflate to gigabytes cost at most that bound, and then a WireError. The library lets
other threads run meanwhile. So a large buffer is neither cleared nor copied here: at 64 MiB each of
the two would hold the interpreter, and with it the event loop, for 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import TypeAlias

import cramjam

from wire.errors import WireError
from wire.records.header import Compression
from wire.types import Buffer

#: Records of one batch after decompression, unless the caller says otherwise.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
#: From so many bytes on the system provides a buffer, page by page: what is smaller is cleared in
#: less than a millisecond.
_LARGE_BYTES = 1024 * 1024
_FIRST_GUESS_MIN = 16 * 1024
_GROWTH = 4
#: The message of cramjam's error when the output buffer is too small.
_OUTPUT_FULL = "failed to write whole buffer"


_Output: TypeAlias = bytearray | mmap


class InflatesTooFar(WireError):
    """A stream holds more than the caller's bound, or more blocks than so much can have."""


#: The first bytes of snappy as snappy-java frames it; blocks of (length int32, raw snappy) follow.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# Its version, and the oldest version that can read it.
_XERIAL_HEADER = _XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
#: The smallest blocks that snappy-java can be told to write. Blocks of five bytes each, which
#: inflate to nothing, would take a thousand times the work of as many bytes in whole blocks.
_XERIAL_BLOCK_BYTES_MIN = 1024
_INT32 = Struct(">i")
#: The first bytes of the other codecs' streams.
_MAGIC = {
    Compression.GZIP: b"\x1f\x8b\x08",
    Compression.LZ4: b"\x04\x22\x4d\x18",
    Compression.ZSTD: b"\x28\xb5\x2f\xfd",
}
#: A snappy element of 3 bytes makes at most 64 bytes, so no block inflates further than this.
_SNAPPY_RATIO_MAX = 22


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` as the codec's stream, as Java's clients write and read it.

    `level` is gzip's (1 to 9) or zstd's; None: the library's own choice.
    """
    if codec is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, level))
    if codec is Compression.SNAPPY:
        return _compress_snappy(data)
    if codec is Compression.LZ4:
        # Java's reader refuses frames whose blocks depend on one another; level 0 is the fast one.
        compressor = cramjam.lz4.Compressor(level=0, block_linked=False, content_checksum=False)
        for start in range(0, len(data), _LARGE_BYTES):
            # The library takes nothing but bytes.
            compressor.compress(bytes(data[start : start + _LARGE_BYTES]))
        return bytes(compressor.finish())
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level))
    return bytes(data)


def decompress(
    codec: Compression, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes | memoryview:
    """Return the decompressed stream: at most `max_bytes`. A large one is a view of its buffer.

    Raises InflatesTooFar when it has more, WireError when it is no stream of that codec.
    """
    if codec is Compression.NONE:
        return bytes(data)
    try:
        if codec is Compression.SNAPPY:
            return _decompress_snappy(bytes(data), max_bytes)
        return _decompress_stream(_DECOMPRESS_INTO[codec], data, max_bytes)
    except cramjam.DecompressionError as failure:
        raise WireError(f"{codec.name.lower()}: {failure}") from None


_DECOMPRESS_INTO: dict[Compression, Callable[[Buffer, _Output], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def begins_like(codec: Compression, data: memoryview) -> bool:
    """Return whether the first bytes are those of the codec's stream: a quick look for garbage."""
    if codec is Compression.NONE:
        return True
    if codec is Compression.SNAPPY:
        return bytes(data[:8]) == _XERIAL_MAGIC or _snappy_claim_is_plausible(data)
    return bytes(data[:4]).startswith(_MAGIC[codec])


def _snappy_claim_is_plausible(block: memoryview) -> bool:
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(bytes(block[:10]))
    except cramjam.DecompressionError:
        return False
    return 0 < size_bytes <= _SNAPPY_RATIO_MAX * len(block)


def _decompress_stream(
    decompress_into: Callable[[Buffer, _Output], int], data: Buffer, max_bytes: int
) -> bytes | memoryview:
    # A guess: the streams do not all say how long they are, and none could be believed.
    size_bytes = min(max_bytes, max(_FIRST_GUESS_MIN, _GROWTH * len(data)))
    while True:
        output = _output_of(size_bytes)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as failure:
            # The library has one class for all its errors: its text alone tells a full buffer from
            # garbage.
            if str(failure) != _OUTPUT_FULL:
                raise
        else:
            return _written(output, written)
        if size_bytes >= max_bytes:
            raise InflatesTooFar(f"records inflate to more than {max_bytes} bytes")
        size_bytes = min(max_bytes, _GROWTH * size_bytes)


def _output_of(size_bytes: int) -> _Output:
    if size_bytes < _LARGE_BYTES:
        return bytearray(size_bytes)
    return mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _written(output: _Output, size_bytes: int) -> bytes | memoryview:
    view = memoryview(output)[:size_bytes].toreadonly()
    return bytes(view) if size_bytes < _LARGE_BYTES else view


def _compress_snappy(data: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, max_bytes: int) -> bytes | memoryview:
    if not data.startswith(_XERIAL_MAGIC):
        blocks = [(data, _claimed_bytes(data, max_bytes))]
    else:
        blocks = _xerial_blocks(data, max_bytes)
    output = _output_of(sum(size_bytes for _, size_bytes in blocks))
    place, written = memoryview(output), 0
    for block, size_bytes in blocks:
        into = place[written : written + size_bytes]
        written += cramjam.snappy.decompress_raw_into(block, into)
    return _written(output, written)


def _xerial_blocks(data: bytes, max_bytes: int) -> list[tuple[bytes, int]]:
    """Return the blocks, and what each claims to inflate to: together at most `max_bytes`."""
    blocks: list[tuple[bytes, int]] = []
    blocks_max = 1 + max_bytes // _XERIAL_BLOCK_BYTES_MIN
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise WireError(f"snappy: a header of {len(data)} bytes, not {position}")
    while position < len(data):
        if len(blocks) == blocks_max:
            raise InflatesTooFar(f"snappy: more than {blocks_max} blocks")
        if len(data) - position < _INT32.size:
            raise WireError("snappy: a block without its length")
        (length,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 <= length <= len(data) - position:
            raise WireError(f"snappy: a block of {length} bytes, {len(data) - position} remain")
        block = data[position : position + length]
        size_bytes = _claimed_bytes(block, max_bytes)
        max_bytes -= size_bytes
        blocks.append((block, size_bytes))
        position += length
    return blocks


def _claimed_bytes(block: bytes, max_bytes: int) -> int:
    """Return what a raw block claims to inflate to: at most `max_bytes`."""
    size_bytes = cramjam.snappy.decompress_raw_len(block)
    claim = f"snappy: {len(block)} bytes claim to inflate to {size_bytes}"
    if size_bytes > _SNAPPY_RATIO_MAX * len(block):
        raise WireError(claim)
    if size_bytes > max_bytes:
        raise InflatesTooFar(f"{claim}, at most {max_bytes}")
    return int(size_bytes)
