"""Tag 1002 of DescribeTransactions: a client reads it from whatever broker answers."""

import pytest

from wire.errors import WireError
from wire.transaction_tags import decode_children, encode_children


def test_children_are_read_as_they_were_written() -> None:
    assert decode_children(encode_children(["p~>one", "p~>é"])) == ["p~>one", "p~>é"]


@pytest.mark.parametrize("value", [b"\0", b"\0\2a", b"\0\1\xff"])
def test_children_that_cannot_be_read_are_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode_children(value)
