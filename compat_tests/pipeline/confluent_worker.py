"""The worker on confluent-kafka.

librdkafka delivers on after a rebalance what it had fetched before; an application that commits in
transactions must drop it, so the callbacks here do more than print. And it never looks for a
beginning: where a `seek` comes in between, it goes there half a second later (docs/clients.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat_tests.offsets import positions
from compat_tests.pipeline.job import Batch, Job, Output
from compat_tests.pipeline.telling import tell

_CALL_TIMEOUT_S = 20.0
Input = tuple[int, int, bytes]


class Transacted(Protocol):
    """The outputs and offsets of one transaction."""

    @property
    def record_count(self) -> int: ...

    def next_offsets(self) -> dict[int, int]: ...

    def outputs(self, job: Job) -> Iterable[Output]: ...


class Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.rebalanced = False
        self.producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                # Rebootstrapping forgets the coordinator a transaction waits for.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self.consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap,
                "group.id": job.group,
                "client.id": job.worker,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": job.session_timeout_ms,
                "heartbeat.interval.ms": job.session_timeout_ms // 6,
                "max.poll.interval.ms": job.rebalance_timeout_ms,
                "partition.assignment.strategy": "range",
                "reconnect.backoff.max.ms": 500,
                # Rebootstrapping forgets the coordinator a transaction waits for.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self.membership: Any = None

    def run(self) -> None:
        self.producer.init_transactions(_CALL_TIMEOUT_S)
        self.consumer.subscribe(
            [self.job.text_topic],
            on_assign=self._on_assign,
            on_revoke=self._on_rebalance,
            on_lost=self._on_rebalance,
        )
        tell("ready")
        while True:
            self.rebalanced = False
            messages: list[Any] = self.consumer.consume(self.job.batch_records, 0.5)
            # As of the poll. librdkafka may learn later, in a thread of its own, that the group
            # goes on without this member: metadata without a generation, which fences nothing.
            self.membership = self.consumer.consumer_group_metadata()
            if self.rebalanced or not self.consumer.memberid():
                self._rewind()
                continue
            inputs = [
                (each.partition(), each.offset(), each.value())
                for each in messages
                if each.error() is None
            ]
            if inputs:
                self._count(self.batch_of(inputs))
            else:
                tell("idle")

    def batch_of(self, inputs: Iterable[Input]) -> Transacted:
        """Make the outputs of a transaction from its (partition, offset, value) inputs."""
        return Batch.of(inputs)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin at offsets, so that librdkafka asks for none of its own."""
        self.rebalanced = True
        consumer.assign(positions(consumer, partitions, _CALL_TIMEOUT_S))

    def _on_rebalance(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalanced = True

    def _count(self, batch: Transacted) -> None:
        try:
            self.producer.begin_transaction()
            for output in batch.outputs(self.job):
                self.producer.produce(output.topic, output.value, output.key, output.partition)
            signature = self._signature()
            ends = [
                TopicPartition(self.job.text_topic, partition, offset, signature)
                for partition, offset in batch.next_offsets().items()
            ]
            self.producer.send_offsets_to_transaction(ends, self.membership, _CALL_TIMEOUT_S)
            aborts = self.job.aborts()
            if not aborts:
                self.producer.commit_transaction(_CALL_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell("refused", why=str(error))
            aborts = True
        if aborts:
            self.producer.abort_transaction(_CALL_TIMEOUT_S)
            self._rewind()
        tell("aborted" if aborts else "committed", records=batch.record_count)

    def _signature(self) -> str:
        """Sign as the membership has it: `CGMDv2:`, generation, group NUL, member NUL, instance."""
        said = bytes(self.membership).partition(b":")[2]
        generation_id = int.from_bytes(said[:4], sys.byteorder, signed=True)
        return self.job.signature(generation_id, said[4:].split(b"\0")[1].decode())

    def _rewind(self) -> None:
        """Go back to what is committed: nothing read since was counted."""
        for position in positions(self.consumer, self.consumer.assignment(), _CALL_TIMEOUT_S):
            self.consumer.seek(position)
