"""A writer on confluent-kafka (transaction version 1)."""

from __future__ import annotations

import random
import time

from confluent_kafka import KafkaException, Producer

from compat_tests.pipeline.telling import tell
from compat_tests.soak.entry import Draft, drafts
from compat_tests.soak.plan import SoakJob

_CALL_TIMEOUT_S = 20.0


class Worker:
    """Writes transactions with one producer after the other; each ends when it is fenced."""

    def __init__(self, job: SoakJob) -> None:
        self.job = job
        self.drafts = drafts(job.worker, job.abort_probability)

    def run(self) -> None:
        while True:
            try:
                producer = self._producer()
                while self._transact(producer, next(self.drafts)):
                    time.sleep(random.uniform(0, 2 * self.job.pause_ms) / 1000)
            except KafkaException as error:
                tell("fenced", why=str(error))
            time.sleep(random.uniform(0.1, 3.0))

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.job.bootstrap,
                "transactional.id": self.job.transactional_id,
                "transaction.timeout.ms": self.job.transaction_timeout_ms,
                "client.id": self.job.worker,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                # Rebootstrapping forgets the coordinator a transaction waits for.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        producer.init_transactions(_CALL_TIMEOUT_S)
        return producer

    def _transact(self, producer: Producer, draft: Draft) -> bool:
        """Run one transaction; False or an exception where the producer is of no more use."""
        tell("begin", txn=draft.txn, of=len(draft.partitions))
        try:
            producer.begin_transaction()
            for partition, entry in draft.entries():
                producer.produce(self.job.text_topic, entry.to_value(), partition=partition)
            if draft.commits:
                tell("committing", txn=draft.txn)
                producer.commit_transaction(_CALL_TIMEOUT_S)
                tell("committed", txn=draft.txn)
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        producer.abort_transaction(_CALL_TIMEOUT_S)
        tell("aborted", txn=draft.txn)
        return True
