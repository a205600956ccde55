"""The seal of files of our own: their first bytes say what the file is, and that it is whole.

bytes 0-4   magic, four ASCII letters
      4-6   version     int16
      6-10  CRC-32C     uint32, over bytes 10 to the end
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

_PREFIX = Struct(">4shI")
#: Where the sealed body begins.
BODY_AT = _PREFIX.size


class BrokenSeal(ValueError):
    """The file is torn, or of another kind or version."""


class Seal(NamedTuple):
    """A kind of file."""

    magic: bytes
    version: int

    def sealed(self, body: bytes) -> bytes:
        """Return the file that holds `body`."""
        return self.prefix(crc32c(body)) + body

    def prefix(self, crc: int) -> bytes:
        """Return what stands before a body of this CRC-32C."""
        return _PREFIX.pack(self.magic, self.version, crc)

    def check(self, data: bytes) -> None:
        """Raise BrokenSeal if `data` is not a file of this kind, whole."""
        if len(data) < BODY_AT:
            raise BrokenSeal(f"it is too short: {len(data)} bytes")
        magic, version, crc = _PREFIX.unpack_from(data)
        if (magic, version) != self:
            raise BrokenSeal(f"begins with {magic!r}, version {version}")
        if crc32c(memoryview(data)[BODY_AT:]) != crc:
            raise BrokenSeal("its CRC is wrong")
