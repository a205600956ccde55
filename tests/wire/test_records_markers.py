"""Markers: the usual ones are read at one look, and as any other control batch is."""

from __future__ import annotations

import pytest

from wire.errors import WireError
from wire.records import BatchHeader, ControlType, control, parse_marker
from wire.records.control import Marker, build_marker


def marker(*, commit: bool = True) -> bytearray:
    return build_marker(
        base_offset=7,
        producer_id=1000,
        producer_epoch=3,
        coordinator_epoch=70_000,
        commit=commit,
        timestamp_ms=1_700_000_000_000,
    )


def told(batch: bytes) -> Marker | type[WireError]:
    try:
        return parse_marker(batch)
    except WireError:
        return WireError


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_says_the_outcome_and_the_epoch_of_its_coordinator(commit: bool) -> None:
    batch = marker(commit=commit)
    found = Marker(ControlType.COMMIT if commit else ControlType.ABORT, 70_000)
    assert parse_marker(batch) == parse_marker(memoryview(batch)) == found
    assert parse_marker(bytes(batch) + bytes(marker())) == found, "others may follow"


def test_whatever_byte_differs_the_quick_look_says_what_the_long_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = marker()
    changed = []
    for position in range(len(whole)):
        for change in (1, 2, 8, 0x80, 0xFF):
            batch = bytearray(whole)
            batch[position] ^= change
            changed.append(bytes(batch))
    cut = [bytes(whole[:size]) for size in range(len(whole))]
    quick = [told(one) for one in (*changed, *cut)]
    monkeypatch.setattr(control, "_OUTCOMES", {})
    assert quick == [told(one) for one in (*changed, *cut)]
    assert {WireError, parse_marker(whole)} < {*quick}
    assert BatchHeader.parse(whole).is_control
