"""A producer for one topic: idempotent, and on demand in a transaction.

It sends one request at a time to each leader, and all replicas acknowledge. What a retry may help
is sent again with the same sequence numbers, so nothing is written twice. Transactions are of
version 1, which every broker speaks. Source: KIP-98.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from magnetar.client.batching import Batch, Batcher, ProducerRecord, rounds
from magnetar.client.cluster import RETRY_DELAY_S, Client, TopicPartition, by_leader
from magnetar.client.errors import ClientError, Refused, Unreachable, check
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
#: From 13 on requests name topic ids. From 12 on brokers add partitions to transactions unasked.
_VERSION_OF_NAMES, _VERSION_OF_EXPLICIT_ADDS = 12, 11
#: The last versions for clients: AddPartitionsToTxn 4 is for brokers (KIP-890), and EndTxn 5 bumps
#: the epoch, which belongs to transaction version 2.
_ADD_VERSION, _END_VERSION = 3, 4
#: How long a topic that exists may be unknown to a broker.
_NEWS_S = 1.0
#: Errors after which the same batch may be sent again. Its sequence number keeps it from being
#: written twice, if it was written after all.
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
    """The records of one partition that were acknowledged; offsets are -1 before the first."""

    records: int = 0
    first_offset: int = -1
    end_offset: int = -1

    def add(self, base_offset: int, count: int) -> None:
        self.records += count
        # A duplicate that the broker remembers no offset of is answered with -1.
        if base_offset >= 0:
            if self.first_offset < 0:
                self.first_offset = base_offset
            self.end_offset = base_offset + count


@dataclass
class _Encoded:
    partition: int
    count: int
    data: bytearray


@dataclass
class Producer:
    """Writes to one topic. Call `open`, `send` any number of times, then `commit` or `abort`."""

    client: Client
    topic: str
    partition: int | None = None
    compression: Compression = Compression.NONE
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    #: Whether a topic that is missing may be made, by brokers with auto.create.topics.enable.
    may_create: bool = False
    written: dict[int, Written] = field(default_factory=dict)
    _leaders: dict[TopicPartition, int] = field(default_factory=dict)
    _batcher: Batcher = field(default_factory=lambda: Batcher((), 0))
    _sequences: dict[int, int] = field(default_factory=dict)
    _added: set[int] = field(default_factory=set)
    _producer_id: int = -1
    _producer_epoch: int = -1
    _coordinator: int | None = None

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged."""
        return sum(each.records for each in self.written.values())

    def open(self) -> None:
        """Find the topic and get a producer id. Refused: the topic does not exist."""
        count = self._find_topic()
        if self.partition is not None and (self.topic, self.partition) not in self._leaders:
            raise ClientError(
                f"topic {self.topic} has no partition {self.partition} with a leader:"
                f" its partitions are 0 to {count - 1}."
            )
        # Without any leader all partitions are as good: the first that gets one takes its records.
        available = sorted(index for _, index in self._leaders) or range(count)
        self._batcher = Batcher(available, count, self.partition)
        if self.transactional_id is not None:
            self._coordinator = self.client.coordinator_of(self.transactional_id)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
        )
        response = self.client.retry_transient(
            lambda: self.client.call(request, InitProducerIdResponse, node_id=self._coordinator),
            lambda response: response.error_code,
        )
        check(response.error_code, "getting a producer id")
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    def send(self, records: Iterable[ProducerRecord]) -> None:
        """Return when all of these records are acknowledged. Refused: a batch was not."""
        # One batch per partition at a time: a second one in flight would be out of sequence if the
        # first were refused.
        for batches in rounds(self._batcher.batches(records)):
            if self.transactional_id is not None:
                self._add_partitions({batch.partition for batch in batches})
            self._write([self._encode(batch) for batch in batches])

    def commit(self) -> None:
        """Make the transaction's records visible. Does nothing if none was sent."""
        self._end(commit=True)

    def abort(self) -> None:
        """Abort the transaction: no read_committed reader sees its records."""
        self._end(commit=False)

    def _find_topic(self) -> int:
        """Find the leaders. Returns the number of partitions, those without a leader included."""
        began = time.monotonic()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)],
            allow_auto_topic_creation=self.may_create,
        )
        while True:
            (topic,) = self.client.call(request, MetadataResponse).topics
            is_unknown = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            # A topic that was just created may be news to a broker, but not for long.
            patience_s = _NEWS_S if is_unknown and not self.may_create else self.client.timeout_s
            if topic.error_code not in _RETRIABLE or time.monotonic() - began > patience_s:
                check(topic.error_code, f"topic {self.topic}")
                self._leaders = self.client.topics([self.topic])
                return len(topic.partitions)
            time.sleep(RETRY_DELAY_S)

    def _encode(self, batch: Batch) -> _Encoded:
        now_ms = int(time.time() * 1000)
        # Counted when encoded, not when acknowledged: retries send the same bytes again.
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
        deadline = time.monotonic() + self.client.timeout_s
        pending = {batch.partition: batch for batch in batches}
        while pending:
            refused: dict[int, tuple[int, str | None]] = {}
            for node_id, topics in by_leader(
                self._leaders, [(self.topic, index) for index in pending]
            ):
                # One partition per request, so a failed request leaves one batch in doubt and not
                # all of a leader's.
                for index in topics[self.topic]:
                    try:
                        self._request(node_id, pending[index], refused)
                    except Unreachable as failure:
                        if time.monotonic() > deadline:
                            raise
                        refused[index] = ErrorCode.NETWORK_EXCEPTION, str(failure)
            pending = {index: pending[index] for index in refused}
            if pending:
                self._check_retriable(refused, time.monotonic() > deadline)
                time.sleep(RETRY_DELAY_S)
                # With the old leaders the next attempt fails as this one did, until the deadline.
                with suppress(Unreachable):
                    self._leaders = self.client.topics([self.topic])

    def _request(
        self, node_id: int, batch: _Encoded, refused: dict[int, tuple[int, str | None]]
    ) -> None:
        in_transaction = self.transactional_id is not None
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self.client.timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    partition_data=[
                        PartitionProduceData(index=batch.partition, records=bytes(batch.data))
                    ],
                )
            ],
        )
        response = self.client.call(
            request,
            ProduceResponse,
            node_id=node_id,
            at_most=_VERSION_OF_EXPLICIT_ADDS if in_transaction else _VERSION_OF_NAMES,
        )
        (result,) = response.responses[0].partition_responses
        # A duplicate was written by an earlier attempt whose response was lost.
        if result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            written = self.written.setdefault(batch.partition, Written())
            written.add(result.base_offset, batch.count)
        else:
            refused[batch.partition] = result.error_code, result.error_message

    def _check_retriable(
        self, refused: dict[int, tuple[int, str | None]], is_too_late: bool
    ) -> None:
        for index, (code, message) in refused.items():
            if code not in _RETRIABLE or is_too_late:
                raise Refused(code, f"{self.topic}-{index}", message)

    def _add_partitions(self, partitions: set[int]) -> None:
        # Asked for before the first batch: a broker refuses records of a partition that the
        # transaction does not hold (KIP-890).
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
            response = self.client.call(
                request,
                AddPartitionsToTxnResponse,
                node_id=self._coordinator,
                at_most=_ADD_VERSION,
            )
            for topic in response.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    if result.partition_error_code:
                        return result.partition_error_code, result.partition_index
            return ErrorCode.NONE, -1

        code, index = self.client.retry_transient(ask, lambda response: response[0])
        check(code, f"adding {self.topic}-{index} to the transaction")
        self._added.update(new)

    def _end(self, *, commit: bool) -> None:
        # A transaction without a partition was never begun at the coordinator, which would refuse
        # to end it.
        if not self._added:
            return
        assert self.transactional_id is not None
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=commit,
        )
        response = self.client.retry_transient(
            lambda: self.client.call(
                request, EndTxnResponse, node_id=self._coordinator, at_most=_END_VERSION
            ),
            lambda response: response.error_code,
        )
        check(response.error_code, f"{'committing' if commit else 'aborting'} the transaction")
        self._added.clear()
