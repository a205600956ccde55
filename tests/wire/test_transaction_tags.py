"""Tags of DescribeTransactions: a client reads them from whatever broker answers."""

import pytest

from wire.errors import WireError
from wire.transaction_tags import (
    decode_children,
    decode_client,
    decode_shards,
    encode_children,
    encode_client,
    encode_shards,
)


def test_children_are_read_as_they_were_written() -> None:
    assert decode_children(encode_children(["p~>one", "p~>é"])) == ["p~>one", "p~>é"]


@pytest.mark.parametrize("value", [b"\0", b"\0\2a", b"\0\1\xff"])
def test_children_that_cannot_be_read_are_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode_children(value)


def test_a_client_is_read_as_it_was_written() -> None:
    for client in (("etl-é", "10.1.4.7:4711"), ("", "[::1]:9"), ("x", "")):
        assert decode_client(encode_client(*client)) == client


@pytest.mark.parametrize("value", [b"\0\2a", b"\0\1\xff", b"\0\0\xff"])
def test_a_client_that_cannot_be_read_is_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode_client(value)


def test_shards_are_read_as_they_were_written() -> None:
    assert decode_shards(encode_shards(50, [0, 49])) == (50, {0, 49})
    assert decode_shards(encode_shards(0, [])) == (0, set())


@pytest.mark.parametrize("value", [b"", b"\0\0\0", b"\0\0\0\1\0"])
def test_shards_that_cannot_be_read_are_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode_shards(value)
