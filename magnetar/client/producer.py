"""Sending records: partitions chosen as Java's clients do, idempotent, on demand in a transaction.

One request at a time to each leader, acknowledged by all replicas; what a retry may help is sent
again under the same sequence numbers, so nothing is written twice. Transactions are of version 1,
which every broker speaks. Source: KIP-98.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from magnetar.cli.input_records import InputRecord
from magnetar.client.cluster import Client, ClientError, Refused, TopicPartition, Unreachable, check
from magnetar.client.partitioner import partition_for
from magnetar.client.partitions import by_leader
from wire.error_code import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import Compression, SimpleRecord, build_batch, next_sequence

_ALL_REPLICAS = -1
#: From 13 on topics go by their ids; from 12 on partitions are added to a transaction unasked.
_VERSION_OF_NAMES, _VERSION_OF_EXPLICIT_ADDS = 12, 11
_ADD_VERSION, _END_VERSION = 3, 4
#: Of records in one batch before compression, well below the 1 MB that brokers take by default.
_BATCH_BYTES = 512 << 10
_RECORD_OVERHEAD = 32
_RETRY_DELAY_S = 0.1
_RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


@dataclass
class Written:
    """What was acknowledged in one partition."""

    records: int = 0
    first_offset: int = -1
    end_offset: int = -1

    def add(self, base_offset: int, count: int) -> None:
        self.records += count
        if base_offset >= 0:
            if self.first_offset < 0:
                self.first_offset = base_offset
            self.end_offset = base_offset + count


@dataclass
class _Batch:
    partition: int
    records: list[InputRecord]
    size_bytes: int = 0


@dataclass
class _Encoded:
    partition: int
    count: int
    data: bytearray


@dataclass
class Producer:
    """Writes to one topic. `open`, `send` as often as wanted, then `commit` or `abort`."""

    client: Client
    topic: str
    partition: int | None = None
    compression: Compression = Compression.NONE
    transactional_id: str | None = None
    timeout_ms: int = 10_000
    transaction_timeout_ms: int = 60_000
    written: dict[int, Written] = field(default_factory=dict)
    _leaders: dict[TopicPartition, int] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)
    _added: set[int] = field(default_factory=set)
    _producer_id: int = -1
    _producer_epoch: int = -1
    _coordinator: int | None = None
    #: Records without a key go to one partition until a batch is full.
    _sticky: int = -1

    @property
    def acknowledged(self) -> int:
        """How many records are written."""
        return sum(each.records for each in self.written.values())

    def open(self) -> None:
        """Find the topic, which brokers may create by that, and get a producer id."""
        self._leaders = self._find_topic()
        count = len(self._leaders)
        if self.partition is not None and (self.topic, self.partition) not in self._leaders:
            raise ClientError(
                f"topic {self.topic} has no partition {self.partition} with a leader:"
                f" it has {count}, from 0 on."
            )
        if self.transactional_id is not None:
            ((self._coordinator, _),) = self.client.coordinators([self.transactional_id]).items()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
        )
        answer = self.client.until_settled(
            lambda: self.client.call(request, InitProducerIdResponse, node_id=self._coordinator),
            lambda answer: answer.error_code,
        )
        check(answer.error_code, "getting a producer id")
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch

    def send(self, records: Iterable[InputRecord]) -> None:
        """Return when all of these are acknowledged. Refused: why one batch is not."""
        for batches in _rounds(self._batches(records)):
            if self.transactional_id is not None:
                self._add_partitions({batch.partition for batch in batches})
            self._write([self._encode(batch) for batch in batches])

    def commit(self) -> None:
        """End the transaction, if any was begun, so that all of it is visible."""
        self._end(commit=True)

    def abort(self) -> None:
        """End the transaction, if any was begun, so that nobody sees any of it."""
        self._end(commit=False)

    def _find_topic(self) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + self.timeout_ms / 1000
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=True
        )
        while True:
            (topic,) = self.client.call(request, MetadataResponse).topics
            if topic.error_code not in _RETRIABLE or time.monotonic() > deadline:
                check(topic.error_code, f"topic {self.topic}")
                return self.client.topics([self.topic])
            time.sleep(_RETRY_DELAY_S)

    def _batches(self, records: Iterable[InputRecord]) -> list[_Batch]:
        """Return the records in batches that a broker takes; order is kept within a partition."""
        done: list[_Batch] = []
        filling: dict[int, _Batch] = {}
        indexes = sorted(index for _, index in self._leaders)
        self._sticky += 1
        for record in records:
            partition = self._choose(record, indexes)
            size_bytes = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
            size_bytes += sum(len(name) + len(value or b"") for name, value in record.headers)
            batch = filling.get(partition)
            if batch is None or batch.size_bytes + size_bytes > _BATCH_BYTES:
                if batch is not None and record.key is None and self.partition is None:
                    self._sticky += 1
                    partition = self._choose(record, indexes)
                batch = filling[partition] = _Batch(partition, [])
                done.append(batch)
            batch.records.append(record)
            batch.size_bytes += size_bytes
        return done

    def _choose(self, record: InputRecord, indexes: Sequence[int]) -> int:
        if self.partition is not None:
            return self.partition
        if record.key is not None:
            return indexes[partition_for(record.key, len(indexes))]
        return indexes[self._sticky % len(indexes)]

    def _encode(self, batch: _Batch) -> _Encoded:
        now_ms = int(time.time() * 1000)
        sequence = self._sequences.get(batch.partition, 0)
        self._sequences[batch.partition] = next_sequence(sequence, len(batch.records))
        data = build_batch(
            [
                SimpleRecord(
                    record.key,
                    record.value,
                    now_ms if record.timestamp is None else record.timestamp,
                    record.headers,
                )
                for record in batch.records
            ],
            compression=self.compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            is_transactional=self.transactional_id is not None,
        )
        return _Encoded(batch.partition, len(batch.records), data)

    def _write(self, batches: list[_Encoded]) -> None:
        deadline = time.monotonic() + self.timeout_ms / 1000
        pending = {batch.partition: batch for batch in batches}
        while pending:
            refused: dict[int, tuple[int, str | None]] = {}
            for node_id, topics in by_leader(
                self._leaders, [(self.topic, index) for index in pending]
            ):
                for index in topics[0][1]:
                    try:
                        self._request(node_id, pending[index], refused)
                    except Unreachable as failure:
                        if time.monotonic() > deadline:
                            raise
                        refused[index] = ErrorCode.NETWORK_EXCEPTION, str(failure)
            pending = {index: pending[index] for index in refused}
            if pending:
                self._check_retriable(refused, time.monotonic() > deadline)
                time.sleep(_RETRY_DELAY_S)
                with suppress(Unreachable):
                    self._leaders = self.client.topics([self.topic])

    def _request(
        self, node_id: int, batch: _Encoded, refused: dict[int, tuple[int, str | None]]
    ) -> None:
        in_transaction = self.transactional_id is not None
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self.timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    partition_data=[
                        PartitionProduceData(index=batch.partition, records=bytes(batch.data))
                    ],
                )
            ],
        )
        answer = self.client.call(
            request,
            ProduceResponse,
            node_id=node_id,
            at_most=_VERSION_OF_EXPLICIT_ADDS if in_transaction else _VERSION_OF_NAMES,
        )
        (said,) = answer.responses[0].partition_responses
        if said.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            written = self.written.setdefault(batch.partition, Written())
            written.add(said.base_offset, batch.count)
        else:
            refused[batch.partition] = said.error_code, said.error_message

    def _check_retriable(
        self, refused: dict[int, tuple[int, str | None]], is_too_late: bool
    ) -> None:
        for index, (code, message) in refused.items():
            if code not in _RETRIABLE or is_too_late:
                raise Refused(code, f"{self.topic}-{index}", message)

    def _add_partitions(self, partitions: set[int]) -> None:
        new = sorted(partitions - self._added)
        if not new:
            return
        assert self.transactional_id is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=new)],
        )

        def ask() -> tuple[int, int]:
            answer = self.client.call(
                request,
                AddPartitionsToTxnResponse,
                node_id=self._coordinator,
                at_most=_ADD_VERSION,
            )
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    if result.partition_error_code:
                        return result.partition_error_code, result.partition_index
            return ErrorCode.NONE, -1

        code, index = self.client.until_settled(ask, lambda answer: answer[0])
        check(code, f"adding {self.topic}-{index} to the transaction")
        self._added.update(new)

    def _end(self, *, commit: bool) -> None:
        if not self._added:
            return
        assert self.transactional_id is not None
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=commit,
        )
        answer = self.client.until_settled(
            lambda: self.client.call(
                request, EndTxnResponse, node_id=self._coordinator, at_most=_END_VERSION
            ),
            lambda answer: answer.error_code,
        )
        check(answer.error_code, f"{'committing' if commit else 'aborting'} the transaction")
        self._added.clear()


def _rounds(batches: list[_Batch]) -> Iterable[list[_Batch]]:
    """Split into rounds with at most one batch per partition, in order."""
    rounds: list[list[_Batch]] = []
    taken: dict[int, int] = {}
    for batch in batches:
        number = taken.get(batch.partition, 0)
        taken[batch.partition] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(batch)
    return rounds
