"""A writer of transaction version 2 (KIP-890), request by request: librdkafka does not speak it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import replace
from typing import ClassVar, TypeVar

from compat_tests.pipeline.telling import tell
from compat_tests.raw import Closed, Connection, Identity, batch
from compat_tests.soak.entry import Draft, drafts
from compat_tests.soak.plan import SoakJob

_PRODUCE_VERSION, _END_VERSION, _INIT_VERSION = 12, 5, 5
#: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, timed out, not available.
_RETRIABLE = {3, 5, 6, 7, 8, 14, 15, 16, 19, 51}
#: NOT_LEADER, NOT_COORDINATOR: another node has it.
_ELSEWHERE = {6, 16}
T = TypeVar("T")


class Refused(Exception):
    """An answer after which this producer can do nothing more."""


class _NodeConnection(Connection):
    """A connection to one of several nodes: where it is not the coordinator, another one is."""

    not_yet: ClassVar[Set[int]] = Connection.not_yet - {16}


class Worker:
    """Writes transactions; a request whose answer was lost is sent again as it was."""

    def __init__(self, job: SoakJob) -> None:
        self.job = job
        self.drafts = drafts(job.worker, job.abort_probability)
        self._addresses = job.bootstrap.split(",")
        #: By address.
        self._connections: dict[str, Connection] = {}
        #: By what a request is about, the node that had it last: a partition, or None for the id.
        self._homes: Counter[int | None] = Counter()

    def run(self) -> None:
        while True:
            try:
                identity = self._identity()
                while True:
                    identity = self._transact(identity, next(self.drafts))
                    time.sleep(random.uniform(0, 2 * self.job.pause_ms) / 1000)
            except Refused as refused:
                tell("fenced", why=str(refused))
            time.sleep(random.uniform(0.1, 3.0))

    def _identity(self) -> Identity:
        if len(self._addresses) > 1:
            coordinator = self._insist(
                None,
                lambda connection: connection.coordinator_address(self.job.transactional_id),
                lambda _: 0,
            )
            self._homes[None] = self._addresses.index(coordinator)
        code, identity = self._insist(
            None,
            lambda connection: connection.init_producer_id(
                self.job.transactional_id,
                timeout_ms=self.job.transaction_timeout_ms,
                version=_INIT_VERSION,
            ),
            lambda answer: answer[0],
        )
        if code:
            raise Refused(f"InitProducerId: {code}")
        return identity

    def _transact(self, identity: Identity, draft: Draft) -> Identity:
        """Run one transaction and return who runs the next."""
        tell("begin", txn=draft.txn, of=len(draft.partitions))
        sequences: Counter[int] = Counter()
        for partition, entry in draft.entries():
            records = batch([entry.to_value()], identity, sequences[partition])
            sequences[partition] += 1
            self._produce(identity, partition, records)
        if draft.commits:
            tell("committing", txn=draft.txn)
        ended = self._insist(
            None,
            lambda connection: connection.end(identity, commit=draft.commits, version=_END_VERSION),
            lambda answer: answer.error_code,
        )
        if ended.error_code:
            raise Refused(f"EndTxn: {ended.error_code}")
        tell("committed" if draft.commits else "aborted", txn=draft.txn)
        return replace(identity, producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)

    def _produce(self, identity: Identity, partition: int, records: bytes) -> None:
        while True:
            code = self._insist(
                partition,
                lambda connection: connection.produce(
                    self.job.text_topic,
                    records,
                    transactional_id=identity.transactional_id,
                    partition=partition,
                    version=_PRODUCE_VERSION,
                ),
                lambda answer: answer.error_code,
            ).error_code
            if not code:
                return
            if code not in _RETRIABLE:
                raise Refused(f"Produce: {code}")
            time.sleep(0.05)

    def _insist(
        self, about: int | None, call: Callable[[Connection], T], code_of: Callable[[T], int]
    ) -> T:
        """Ask until there is an answer of the node that has it, through as many connections as it
        takes.

        `about`: a partition, or None for the transactional id.
        """
        while True:
            address = self._addresses[self._homes[about] % len(self._addresses)]
            try:
                if address not in self._connections:
                    self._connections[address] = _NodeConnection(address)
                answer = call(self._connections[address])
            except (Closed, OSError):
                if (lost := self._connections.pop(address, None)) is not None:
                    lost.close()
                # In a cluster another node leads what a dead one led; else it is asked in its turn.
                self._homes[about] += 1
                time.sleep(0.1)
                continue
            if len(self._addresses) == 1 or code_of(answer) not in _ELSEWHERE:
                return answer
            self._homes[about] += 1
