"""Which shard of an internal topic coordinates a transactional id or a group.

The hash function is Java's: a client, a tool or an adopted data directory of Apache Kafka expects
`transactional.id` and `group.id` on exactly this partition of `__transaction_state` and
`__consumer_offsets`. Source: java.lang.String.hashCode; org.apache.kafka.common.utils.Utils.abs.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from sys import byteorder

#: A client may ask for thousands of names of 32 KB that need not exist: these would stay.
REMEMBERED_LENGTH_MAX = 256
#: From here on a 32-bit number is a negative one.
_SIGN = 2**31
_SIGN_TWICE = 2**32
_UTF_16 = "utf-16-le" if byteorder == "little" else "utf-16-be"


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` of `text` as an unsigned 32-bit number.

    It runs over UTF-16 code units: a character outside the basic plane counts as its two
    surrogates.
    """
    value = 0
    for unit in array("H", text.encode(_UTF_16, "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition in [0, partition_count) that coordinates `key`.

    By the hash without its sign; -2**31, which has no counterpart, counts as 0.
    """
    found = _remembered if len(key) <= REMEMBERED_LENGTH_MAX else _partition_for
    return found(key, partition_count)


def _partition_for(key: str, partition_count: int) -> int:
    value = java_string_hash(key)
    return (value if value < _SIGN else _SIGN_TWICE - value) % _SIGN % partition_count


_remembered = lru_cache(maxsize=4096)(_partition_for)
