"""The worker on aiokafka, which speaks the oldest transactional protocol and so needs two helpers.

It cannot name its member and generation with the offsets of a transaction (KIP-447), so before a
commit it asks whether it is still a member: a member that holds the lock has not rejoined, and one
that is still listed has not been replaced. It does not ask for stable offsets either, so it starts
from those that confluent-kafka's AdminClient reads for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as AdminTopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.pipeline.job import Batch, Job
from compat_tests.pipeline.telling import tell

_CALL_TIMEOUT_S = 20.0


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library is untyped
    """Lets no rebalance happen during a transaction, and none go unnoticed."""

    def __init__(self) -> None:
        self.between_transactions = asyncio.Lock()
        self.owns_partitions = False
        self.rewind_due = True

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self.between_transactions:
            self.owns_partitions = False

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.rewind_due = True
        self.owns_partitions = True


class Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        #: Names this incarnation among the group's members.
        self.client_id = f"{job.worker}-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": job.bootstrap})

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        job = self.job
        self.listener = _Listener()
        self.producer = AIOKafkaProducer(
            bootstrap_servers=job.bootstrap,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_timeout_ms,
            linger_ms=2,
        )
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=job.bootstrap,
            group_id=job.group,
            client_id=self.client_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.session_timeout_ms // 6,
            rebalance_timeout_ms=job.rebalance_timeout_ms,
            max_poll_interval_ms=60_000,
            max_poll_records=job.batch_records,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await self.producer.start()
        await self.consumer.start()
        self.consumer.subscribe([job.text_topic], listener=self.listener)
        tell("ready")
        while True:
            await self._step()

    async def _step(self) -> None:
        fetched: dict[Any, list[Any]] = await self.consumer.getmany(
            timeout_ms=500, max_records=self.job.batch_records
        )
        async with self.listener.between_transactions:
            if not self.listener.owns_partitions:
                tell("idle")
                return
            if self.listener.rewind_due:
                self.listener.rewind_due = False
                await self._rewind()
                return
            inputs = [
                (each.partition, each.offset, each.value)
                for records in fetched.values()
                for each in records
            ]
            if inputs:
                await self._count(Batch.of(inputs))
            else:
                tell("idle")

    async def _count(self, batch: Batch) -> None:
        await self.producer.begin_transaction()
        try:
            for output in batch.outputs(self.job):
                await self.producer.send(output.topic, output.value, output.key, output.partition)
            signature = self.job.signature("not told", self.client_id)
            positions = {
                TopicPartition(self.job.text_topic, partition): OffsetAndMetadata(offset, signature)
                for partition, offset in batch.next_offsets().items()
            }
            await self.producer.send_offsets_to_transaction(positions, self.job.group)
            aborts = self.job.aborts() or not await asyncio.to_thread(self._is_member)
            if not aborts:
                await self.producer.commit_transaction()
        except ProducerFenced:
            raise
        except KafkaError as error:
            tell("refused", why=repr(error))
            aborts = True
        if aborts:
            await self.producer.abort_transaction()
            await self._rewind()
        tell("aborted" if aborts else "committed", records=batch.record_count)

    async def _rewind(self) -> None:
        """Go back to what is committed: nothing read since was counted."""
        assigned = self.consumer.assignment()
        for partition, offset in (await asyncio.to_thread(self._committed, assigned)).items():
            self.consumer.seek(partition, offset)

    def _is_member(self) -> bool:
        described = self.admin.describe_consumer_groups(
            [self.job.group], request_timeout=_CALL_TIMEOUT_S
        )
        members = described[self.job.group].result(_CALL_TIMEOUT_S).members
        return any(member.client_id == self.client_id for member in members)

    def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = [AdminTopicPartition(each.topic, each.partition) for each in partitions]
        if not asked:
            return {}
        request = ConsumerGroupTopicPartitions(self.job.group, asked)
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while True:
            answer = self.admin.list_consumer_group_offsets(
                [request], require_stable=True, request_timeout=_CALL_TIMEOUT_S
            )
            found = answer[self.job.group].result(_CALL_TIMEOUT_S).topic_partitions
            unstable = [each.error for each in found if each.error is not None]
            if not unstable:
                break
            if time.monotonic() > deadline:
                raise KafkaException(unstable[0])
            time.sleep(0.05)
        return {TopicPartition(each.topic, each.partition): max(each.offset, 0) for each in found}
