"""What is encoded is decoded again: for every message and version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.message_strategies import CASES, case_id, few, messages


@pytest.mark.parametrize(("message", "version"), CASES, ids=case_id)
def test_decode_gives_what_was_encoded(message: Any, version: int) -> None:
    @few(4)
    @given(messages(message, version), st.binary(max_size=3))
    def check(value: Any, around: bytes) -> None:
        encoded = value.encode(version)
        assert message.decode(encoded, version) == value
        assert b"".join(value.encoder(version)(value)) == encoded
        frame = memoryview(bytearray(around + encoded + around))
        again, end = message.decode_from(frame, version, len(around))
        assert again == value
        assert end == len(around) + len(encoded)

    check()
