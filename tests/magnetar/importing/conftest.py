"""A stopped Kafka's directory, and what an import of it needs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logstore.disk.checkpoints import encode_offsets, encode_partition_metadata
from magnetar.cli.main import main
from tests.logstore.partitions import batch_of
from wire.internal.cluster_metadata import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from wire.message import MetadataRecord
from wire.records import SimpleRecord, build_batch, place

ORDERS, GONE = uuid.UUID(int=7), uuid.UUID(int=8)
SEGMENT = "{:020}.log"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["import", *map(str, arguments)])


def at(offset: int, batch: bytearray, leader_epoch: int = 3) -> bytes:
    place(batch, offset, leader_epoch)
    return bytes(batch)


def framed(record: MetadataRecord) -> SimpleRecord:
    version = record.max_version
    value = bytes([1, record.record_type, version]) + record.encode(version)
    return SimpleRecord(None, value, 0)


def metadata_log(directory: Path, *records: MetadataRecord) -> None:
    directory.mkdir(parents=True)
    batch = build_batch([framed(record) for record in records])
    (directory / SEGMENT.format(0)).write_bytes(batch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A stopped Kafka with `orders` of two partitions, the first of two segments."""
    path = tmp_path / "kafka"
    for index in range(2):
        directory = path / f"orders-{index}"
        directory.mkdir(parents=True)
        (directory / "partition.metadata").write_bytes(encode_partition_metadata(ORDERS))
        (directory / SEGMENT.format(0)).write_bytes(at(0, batch_of(b"a")))
    (path / "orders-0" / SEGMENT.format(1)).write_bytes(at(1, batch_of(b"b")))
    metadata_log(
        path / "__cluster_metadata-0",
        TopicRecord(name="orders", topic_id=ORDERS),
        PartitionRecord(partition_id=0, topic_id=ORDERS, replicas=[1]),
        PartitionRecord(partition_id=1, topic_id=ORDERS, replicas=[1]),
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5"),
        ConfigRecord(resource_type=2, resource_name="orders", name="of.a.later.kafka", value="5"),
        ProducerIdsRecord(next_producer_id=2000),
    )
    (path / "meta.properties").write_text("version=1\ncluster.id=the-cluster\nnode.id=1\n")
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    points = {("orders", 0): 2, ("orders", 1): 1, ("__cluster_metadata", 0): 9}
    (path / "recovery-point-offset-checkpoint").write_bytes(encode_offsets(points))
    (path / ".lock").touch()
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Every file of topics below a data directory."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.parent != path
    }
