"""The settings by which stored batches are compressed: a broker has them, and each topic has."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.config.setting import (
    ConfigType,
    InvalidValue,
    Setting,
    integer,
    parse_integer,
    string,
)

_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


def compression_type(synonyms: Sequence[str] = ()) -> Setting[str]:
    """Declare the codec of stored batches."""
    return string(
        "producer",
        one_of=_TYPES,
        synonyms=synonyms,
        since="0.9",
        doc="Codec of stored batches: others are compressed again as they arrive, in the loop;"
        " producer: all are kept as they came.",
    )


def gzip_level(synonyms: Sequence[str] = ()) -> Setting[int]:
    """Declare the level of gzip: 1 to 9, or -1 for the codec's own choice."""

    def parse(text: str) -> int:
        value = parse_integer(text)
        # 0 means no compression to zlib, and Kafka refuses it.
        if value != -1 and not 1 <= value <= 9:
            raise InvalidValue("is neither from 1 to 9 nor -1")
        return value

    doc = "Level of gzip where the broker compresses."
    return Setting(ConfigType.INT, parse, -1, doc=doc, since="3.8", synonyms=synonyms)


def lz4_level(synonyms: Sequence[str] = ()) -> Setting[int]:
    """Declare the level of lz4: 1 to 17."""
    return integer(
        9,
        minimum=1,
        maximum=17,
        synonyms=synonyms,
        since="3.8",
        doc="Shown: lz4 has one level here, the fast one.",
        acts=False,
    )


def zstd_level(synonyms: Sequence[str] = ()) -> Setting[int]:
    """Declare the level of zstd: -131072 to 22."""
    return integer(
        3,
        minimum=-131072,
        maximum=22,
        synonyms=synonyms,
        since="3.8",
        doc="As compression.gzip.level, of zstd.",
    )
