"""Keys go to the partitions that other clients choose."""

from __future__ import annotations

from aiokafka.partitioner import murmur2 as aiokafkas_murmur2
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.batching import murmur2, partition_for


@given(st.binary(max_size=40))
def test_keys_are_hashed_as_other_clients_hash_them(key: bytes) -> None:
    assert murmur2(key) == aiokafkas_murmur2(key) & 0xFFFFFFFF


def test_a_partition_is_never_negative() -> None:
    assert {partition_for(b"%d" % number, 3) for number in range(100)} == {0, 1, 2}
