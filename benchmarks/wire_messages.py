"""How long one message takes to encode and decode, beside kio and kafka-python. Microseconds.

    python -m benchmarks.wire_messages

Each figure is the best of several rounds on one core. kio reads natively and writes in Python;
kafka-python does both in Python. Records are 2000 bytes per partition: our decoder does not copy
them. `parts` is how responses are sent: a gather list, in which larger records are not copied.
"""

from __future__ import annotations

import pkgutil
import sys
import time
import timeit
import warnings
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from tools.kafka_schemas import snake_case
from wire.message import Message
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ROUNDS = 7
SECONDS_PER_ROUND = 0.05


class Case(NamedTuple):
    label: str
    message: Message
    version: int


def produce_request(partitions: int) -> ProduceRequest:
    data = [PartitionProduceData(index=i, records=bytes(2000)) for i in range(partitions)]
    return ProduceRequest(
        acks=-1, timeout_ms=30000, topic_data=[TopicProduceData(name="orders", partition_data=data)]
    )


def produce_response(partitions: int) -> ProduceResponse:
    answers = [PartitionProduceResponse(index=i, base_offset=1 << 20) for i in range(partitions)]
    topic = TopicProduceResponse(name="orders", partition_responses=answers)
    return ProduceResponse(responses=[topic])


def fetch_request(partitions: int) -> FetchRequest:
    wanted = [
        FetchPartition(partition=i, fetch_offset=1 << 20, partition_max_bytes=1 << 20)
        for i in range(partitions)
    ]
    topic = FetchTopic(topic="orders", partitions=wanted)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def fetch_response(partitions: int) -> FetchResponse:
    data = [
        PartitionData(
            partition_index=i,
            high_watermark=1 << 20,
            last_stable_offset=1 << 20,
            log_start_offset=0,
            aborted_transactions=None,
            records=bytes(2000),
        )
        for i in range(partitions)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=data)])


def metadata_response(partitions: int) -> MetadataResponse:
    found = [
        MetadataResponsePartition(
            partition_index=i, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
        )
        for i in range(partitions)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        cluster_id="5L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[MetadataResponseTopic(name="orders", topic_id=UUID(int=7), partitions=found)],
    )


def add_partitions(partitions: int) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnTopic(name="orders", partitions=list(range(partitions)))
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="orders-etl-3",
        v3_and_below_producer_id=1001,
        v3_and_below_topics=[topic],
    )


CASES = [
    Case("ProduceRequest v11, 1 partition", produce_request(1), 11),
    Case("ProduceRequest v11, 4 partitions", produce_request(4), 11),
    Case("ProduceResponse v11, 4 partitions", produce_response(4), 11),
    Case("FetchRequest v12, 4 partitions", fetch_request(4), 12),
    Case("FetchResponse v12, 4 partitions", fetch_response(4), 12),
    Case("MetadataResponse v12, 4 partitions", metadata_response(4), 12),
    Case("AddPartitionsToTxnRequest v3, 4 partitions", add_partitions(4), 3),
]


def microseconds(work: Callable[[], object]) -> float:
    """The best time of one call, of this process alone."""
    timer = timeit.Timer(work, timer=time.process_time)
    count = 1
    while (seconds := timer.timeit(count)) < SECONDS_PER_ROUND:
        count = max(count * 2, int(count * SECONDS_PER_ROUND / max(seconds, 1e-7)))
    return min(timer.repeat(ROUNDS, count)) / count * 1e6


def ours(case: Case) -> list[float]:
    message, version = case.message, case.version
    frame = memoryview(bytearray(message.encode(version)))
    decode = type(message).decode
    return [
        microseconds(lambda: message.encode(version)),
        microseconds(lambda: message.encoder(version)(message)),
        microseconds(lambda: decode(frame, version)),
    ]


def kio(case: Case) -> list[float]:
    name = type(case.message).__name__
    folder = snake_case(name.removesuffix("Request").removesuffix("Response"))
    paths = schema_name_map[folder][case.version].values()
    theirs: Any = pkgutil.resolve_name(next(path for path in paths if path.endswith(f":{name}")))
    read, write = entity_reader(theirs), entity_writer(theirs)
    frame = case.message.encode(case.version)
    parsed, _ = read(frame, 0)
    return [
        microseconds(lambda: write(BytesIO(), parsed)),
        microseconds(lambda: read(frame, 0)),
    ]


def kafka_python(case: Case) -> list[float]:
    name, version = type(case.message).__name__, case.version
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        packages = [
            import_module(f"kafka.protocol.{part}") for part in ("producer", "consumer", "metadata")
        ]
    theirs: Any = next(getattr(package, name) for package in packages if hasattr(package, name))
    frame = case.message.encode(version)
    parsed = theirs.decode(frame, version=version)
    return [
        microseconds(parsed.encode),
        microseconds(lambda: theirs.decode(frame, version=version)),
    ]


def main() -> None:
    columns = ("encode", "parts", "decode", "kio enc", "kio dec", "k-py enc", "k-py dec")
    print(f"{'microseconds, Python ' + sys.version.split()[0]:44}", *(f"{c:>9}" for c in columns))
    for case in CASES:
        figures = [*ours(case), *kio(case), *kafka_python(case)]
        print(f"{case.label:44}", *(f"{figure:9.2f}" for figure in figures))


if __name__ == "__main__":
    main()
