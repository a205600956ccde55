"""A batch compressed another way: what `compression.type` of a topic asks of the broker.

The records are the same bytes, compressed anew; nothing of them is decoded.
"""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.records.compression import compress
from wire.records.header import (
    ATTRIBUTE_COMPRESSION,
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    BatchHeader,
    Buffer,
    Compression,
    pack_batch,
)
from wire.records.record import records_of

#: Records that inflate to more are not compressed again: it is done on the event loop.
RECOMPRESSED_BYTES_MAX = 16 * 1024 * 1024


def recompressed(
    header: BatchHeader, batch: Buffer, codec: Compression, level: int | None = None
) -> bytearray:
    """Return the batch with its records compressed by `codec`, CRC set.

    Raises INVALID_RECORD for a stream that is none, and one that inflates beyond
    RECOMPRESSED_BYTES_MAX.
    """
    try:
        records = records_of(header, batch, RECOMPRESSED_BYTES_MAX)
    except WireError as failure:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(failure)) from None
    body = compress(codec, records, level)
    made = header._replace(
        batch_length=BATCH_OVERHEAD - LENGTH_OVERHEAD + len(body),
        attributes=header.attributes & ~ATTRIBUTE_COMPRESSION | codec,
    )
    return pack_batch(made, body)
