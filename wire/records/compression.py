"""Compressing and decompressing the records of a batch, within a bound, through one library.

Decompression writes into a buffer of a fixed size that grows up to the caller's bound, so a few
bytes that inflate to gigabytes cost at most that bound, and then a WireError.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import cramjam

from wire.errors import WireError
from wire.records.header import Buffer, Compression

#: Records of one batch after decompression, unless the caller says otherwise.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_FIRST_GUESS_MIN = 16 * 1024
_GROWTH = 4
#: The message of cramjam's error when the output buffer is too small.
_OUTPUT_FULL = "failed to write whole buffer"


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


def compress(codec: Compression, data: bytes, level: int | None = None) -> bytes:
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
        compressor.compress(data)
        return bytes(compressor.finish())
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level))
    return data


def decompress(codec: Compression, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the decompressed stream: at most `max_bytes`.

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


_DECOMPRESS_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
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
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int
) -> bytes:
    # A guess: the streams do not all say how long they are, and none could be believed.
    size_bytes = min(max_bytes, max(_FIRST_GUESS_MIN, _GROWTH * len(data)))
    while True:
        output = bytearray(size_bytes)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as failure:
            # The library has one class for all its errors: its text alone tells a full buffer from
            # garbage.
            if str(failure) != _OUTPUT_FULL:
                raise
        else:
            return bytes(memoryview(output)[:written])
        if size_bytes >= max_bytes:
            raise InflatesTooFar(f"records inflate to more than {max_bytes} bytes")
        size_bytes = min(max_bytes, _GROWTH * size_bytes)


def _compress_snappy(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data, max_bytes)
    blocks: list[bytes] = []
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
        block = _decompress_snappy_block(data[position : position + length], max_bytes)
        # One bound for all blocks together.
        max_bytes -= len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _decompress_snappy_block(block: bytes, max_bytes: int) -> bytes:
    size_bytes = cramjam.snappy.decompress_raw_len(block)
    claim = f"snappy: {len(block)} bytes claim to inflate to {size_bytes}"
    if size_bytes > _SNAPPY_RATIO_MAX * len(block):
        raise WireError(claim)
    if size_bytes > max_bytes:
        raise InflatesTooFar(f"{claim}, at most {max_bytes}")
    output = bytearray(size_bytes)
    written = cramjam.snappy.decompress_raw_into(block, output)
    return bytes(memoryview(output)[:written])
