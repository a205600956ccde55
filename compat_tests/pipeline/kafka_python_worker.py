"""The worker on kafka-python. Its poll() calls the rebalance listener before it returns records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

from compat_tests.pipeline.job import Batch, Job
from compat_tests.pipeline.telling import tell

#: After a lost connection its sender may never send what it still has: then this process ends.
_FLUSH_TIMEOUT_S = 4.0


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library is untyped
    def __init__(self) -> None:
        self.owns_partitions = False
        self.rewind_due = True

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.owns_partitions = False

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.rewind_due = True
        self.owns_partitions = True


class Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.listener = _Listener()
        self.membership: Any = None
        self.producer = KafkaProducer(
            bootstrap_servers=job.bootstrap,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_timeout_ms,
            linger_ms=2,
            reconnect_backoff_max_ms=500,
        )
        self.consumer = KafkaConsumer(
            bootstrap_servers=job.bootstrap,
            group_id=job.group,
            client_id=job.worker,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.session_timeout_ms // 6,
            max_poll_interval_ms=job.rebalance_timeout_ms,
            max_poll_records=job.batch_records,
            partition_assignment_strategy=[RangePartitionAssignor],
            reconnect_backoff_max_ms=500,
        )

    def run(self) -> None:
        self.producer.init_transactions()
        self.consumer.subscribe([self.job.text_topic], listener=self.listener)
        tell("ready")
        while True:
            polled: dict[Any, list[Any]] = self.consumer.poll(timeout_ms=500)
            # With the poll. If the heartbeat thread learns later that the group goes on without
            # this member, it forgets the generation, and offsets without one are not fenced.
            self.membership = self.consumer.group_metadata()
            if not self.listener.owns_partitions or self.membership.generation_id < 0:
                tell("idle")
                continue
            if self.listener.rewind_due:
                self.listener.rewind_due = False
                self._rewind()
                continue
            inputs = [
                (each.partition, each.offset, each.value)
                for records in polled.values()
                for each in records
            ]
            if inputs:
                self._count(Batch.of(inputs))
            else:
                tell("idle")

    def _count(self, batch: Batch) -> None:
        """Count in one transaction. Any error ends this process, and the next one aborts.

        Above all a refusal of the offsets: this producer would send them again, beside those of
        its next transaction, which then commits offsets of inputs that it did not count.
        """
        self.producer.begin_transaction()
        for output in batch.outputs(self.job):
            self.producer.send(output.topic, output.value, output.key, None, output.partition)
        self.producer.flush(_FLUSH_TIMEOUT_S)
        member = self.membership
        signature = self.job.signature(member.generation_id, member.member_id)
        positions = {
            TopicPartition(self.job.text_topic, partition): OffsetAndMetadata(offset, signature, -1)
            for partition, offset in batch.next_offsets().items()
        }
        self.producer.send_offsets_to_transaction(positions, member)
        aborts = self.job.aborts()
        if aborts:
            self.producer.abort_transaction()
            self._rewind()
        else:
            self.producer.commit_transaction()
        tell("aborted" if aborts else "committed", records=batch.record_count)

    def _rewind(self) -> None:
        """Go back to what is committed: nothing read since was counted."""
        for partition in self.consumer.assignment():
            self.consumer.seek(partition, self.consumer.committed(partition) or 0)
