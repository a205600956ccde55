"""A TxnId is 128 bits that say who coordinates it, whose it is and which one it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.transactions.metadata import TxnId

txn_ids = st.builds(
    TxnId,
    coordinator_partition=st.integers(0, 0xFFFF),
    producer_epoch=st.integers(0, 0x7FFF),
    count=st.integers(0, 0xFFFF_FFFF),
    producer_id=st.integers(0, 2**63 - 1),
)


@given(txn_ids)
def test_it_survives_its_bytes(txn_id: TxnId) -> None:
    assert len(txn_id.to_bytes()) == 16
    assert TxnId.from_bytes(txn_id.to_bytes()) == txn_id


@given(txn_ids)
def test_what_a_person_sees_is_the_same_128_bits(txn_id: TxnId) -> None:
    assert str(txn_id).replace("-", "") == txn_id.to_bytes().hex()


def test_its_parts_are_in_reading_order() -> None:
    assert str(TxnId(7, 0, 2, 1001)) == "0007-0000-00000002-00000000000003e9"
