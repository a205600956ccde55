"""Kafka's small files, as Apache Kafka 4.3.1 wrote them."""

from __future__ import annotations

import uuid

import pytest

from logstore.disk.checkpoints import (
    CorruptCheckpoint,
    UnknownVersion,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_clean_shutdown,
    encode_leader_epochs,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
)

TOPIC_ID = uuid.UUID("10d5dcac-a7bc-43fe-945c-5f371153a5e4")


def test_leader_epochs_are_kafkas_lines() -> None:
    assert encode_leader_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert decode_leader_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]
    assert decode_leader_epochs(b"0\n0\n") == []


def test_offsets_are_kafkas_lines() -> None:
    offsets = {("t", 0): 27, ("a.b-c", 12): 3}
    assert encode_offsets(offsets) == b"0\n2\na.b-c 12 3\nt 0 27\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets


@pytest.mark.parametrize(
    "torn",
    [b"\n", b"0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0 1", b"1\n1\nt 0 1\n", b"0\n1\nt 0\n", b"\0" * 9],
)
def test_a_torn_checkpoint_is_refused(torn: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_offsets(torn)


def test_an_empty_checkpoint_tells_of_no_offsets() -> None:
    # Kafka makes the file at its start, and writes it a minute later or at its stop.
    assert decode_offsets(b"") == {}


@pytest.mark.parametrize("torn", [b"", b"0\n2\n3 0\n0 17\n", b"0\n2\n0 9\n3 1\n", b"0\n1\nx y\n"])
def test_leader_epochs_must_grow(torn: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_leader_epochs(torn)


def test_partition_metadata_is_kafkas() -> None:
    data = b"version: 0\ntopic_id: ENXcrKe8Q_6UXF83EVOl5A"
    assert encode_partition_metadata(TOPIC_ID) == data
    assert decode_partition_metadata(data) == TOPIC_ID
    for torn in (b"", b"version: 0\n", b"version: 0\ntopic_id: ENX", b"version: 1\ntopic_id: x"):
        with pytest.raises(CorruptCheckpoint):
            decode_partition_metadata(torn)


def test_the_clean_shutdown_marker_is_kafkas() -> None:
    assert encode_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'


def test_a_directory_tells_its_version() -> None:
    # ZooKeeper's brokers wrote 0, or none at all.
    for known in (b"version=1", b"version=0", b"cluster.id=a"):
        assert decode_meta_properties(known) == decode_properties(known)
    for unknown in (b"version=2", b"version=", b"version=one"):
        with pytest.raises(UnknownVersion, match="has version"):
            decode_meta_properties(unknown)


def test_properties_are_javas() -> None:
    data = b"#\n#Sat Nov 21 12:31:32 UTC 2026\nnode.id=1\ndirectory.id=I-UZlW90\nversion=1\n"
    properties = decode_properties(data)
    assert properties == {"node.id": "1", "directory.id": "I-UZlW90", "version": "1"}
    assert decode_properties(encode_properties(properties)) == properties
