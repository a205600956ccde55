"""An idempotent producer outside of transactions: up to five requests under way, retries in order.

As Kafka's client: batches of a partition carry sequences without gaps, and what was not answered
is sent again with the same sequence, first things first, on the next connection. Or the producer
lets go of it, and begins its next epoch: what is on its way still must not come in behind that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.clients.connection import Connection
from tests.simulation.observations import Observations, Sent
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.messages import init_producer_id, produce
from wire.records import SimpleRecord, build_batch

IN_FLIGHT_MAX = 5
#: A batch that was sent so often is refused for good: what came before it is no more.
ATTEMPTS_MAX = 300
KEYS = 4
#: How often, with nothing unanswered, it takes another producer id.
RESTARTS = 0.1
#: How often, behind a lost connection, it lets go of what was not answered.
LETTING_GO = 0.3
_AGAIN = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    #: A batch before this one was not stored: that one is sent again first.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}


@dataclass(slots=True, eq=False)
class _Batch:
    records: list[Sent]
    sequence: int
    data: bytes
    #: Attempts so far: from the second on a duplicate is no wonder.
    attempts: int = 0


class IdempotentProducer:
    """Writes values that no other client writes, to one partition."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        partition: TopicPartition,
        seen: Observations,
        random: Random,
        *,
        has_tombstones: bool = False,
        may_begin_late: bool = False,
    ) -> None:
        """`may_begin_late`: where the leader changes between two of its first requests, or a full
        disk gets room, the first may be refused and the second taken; as in Kafka, which knows no
        producer's beginning."""
        self.name = name
        self._connection = connection
        self._partition = partition
        self._seen = seen
        self._random = random
        self._has_tombstones = has_tombstones
        self._may_begin_late = may_begin_late
        #: Whether a later batch than the first of this producer id was taken first.
        self._has_begun_late = False
        self._producer_id = -1
        self._epoch = 0
        self._sequence = 0
        self._number = 0
        #: Whether a batch of its epoch is there: until then what it let go of may come in.
        self._is_fenced = True
        #: The first batch of the epoch.
        self._first: _Batch | None = None
        self._late: set[asyncio.Task[None]] = set()
        #: Unanswered, in their order.
        self._batches: deque[_Batch] = deque()
        self.is_ending = False

    async def run(self) -> None:
        """Write until told to end, then wait until all is answered."""
        while not self.is_ending or self._batches:
            try:
                restarts = not self._batches and self._random.random() < RESTARTS
                if restarts and self._is_fenced:
                    # As a client whose process was started again.
                    self._producer_id, self._epoch, self._sequence = -1, 0, 0
                if self._producer_id < 0:
                    await self._init()
                await self._send_some()
                await asyncio.sleep(self._random.choice((0, 0.005, 0.05, 0.3)))
            except Gone:
                if self._batches and self._random.random() < LETTING_GO:
                    self._let_go()
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    def _let_go(self) -> None:
        """Begin the next epoch, as a client does whose batches have waited for too long.

        The first batch of this epoch, sent twice because an answer was lost, may be on its way.
        """
        if self._first is not None:
            task = asyncio.create_task(self._arrive_late(self._first))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        self._batches.clear()
        self._epoch, self._sequence = self._epoch + 1, 0
        self._is_fenced = False

    async def _arrive_late(self, batch: _Batch) -> None:
        await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
        with suppress(Gone):
            await self._connection.ask(self._request(batch), produce.ProduceResponse, 9)

    async def _init(self) -> None:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        answer = await self._connection.ask(request, init_producer_id.InitProducerIdResponse, 4)
        if answer.error_code:
            # The catalog of a cluster may not answer in time.
            if answer.error_code != ErrorCode.REQUEST_TIMED_OUT:
                self._witness("InitProducerId", answer.error_code)
            raise Gone
        self._producer_id = answer.producer_id
        self._has_begun_late = False

    async def _send_some(self) -> None:
        """Send all that is unanswered and something new, pipelined. Raises Gone."""
        if not self.is_ending:
            for _ in range(self._random.randint(0, IN_FLIGHT_MAX - len(self._batches))):
                self._batches.append(self._make())
        asking = [asyncio.ensure_future(self._produce(batch)) for batch in self._batches]
        if asking:
            await asyncio.wait(asking)
        for batch, asked in zip(list(self._batches), asking, strict=True):
            # In their order: behind one that is to be sent again nothing may be forgotten.
            if not asked.result() or self._batches[0] is not batch:
                break
            self._batches.popleft()
        told = [asked.result() for asked in asking]
        if self._may_begin_late and told and not told[0] and any(told):
            self._has_begun_late = True
        if self._batches and self._batches[0].attempts > ATTEMPTS_MAX:
            self._give_up()
        if not self._connection.is_open:
            raise Gone

    def _make(self) -> _Batch:
        records = []
        for _ in range(self._random.randint(1, 4)):
            self._number += 1
            is_tombstone = self._has_tombstones and self._random.random() < 0.1
            value = None if is_tombstone else f"{self.name}/{self._number}"
            key = f"{self.name}-{self._random.randrange(KEYS)}"
            made_s = asyncio.get_running_loop().time()
            sent = Sent(self._partition, self.name, self._number, key, value, made_s=made_s)
            records.append(sent)
        self._seen.sent += records
        now_ms = 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)
        data = build_batch(
            [
                SimpleRecord(
                    one.key.encode(), None if one.value is None else one.value.encode(), now_ms
                )
                for one in records
            ],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
        batch = _Batch(records, self._sequence, bytes(data))
        if not self._sequence:
            self._first = batch
        self._sequence += len(records)
        return batch

    async def _produce(self, batch: _Batch) -> bool:
        """Send a batch; return whether it is over with it."""
        batch.attempts += 1
        try:
            answer = await self._connection.ask(self._request(batch), produce.ProduceResponse, 9)
        except Gone:
            return False
        told = answer.responses[0].partition_responses[0]
        if told.error_code == ErrorCode.NONE:
            self._note(batch, told.base_offset)
            return True
        if told.error_code not in _AGAIN:
            self._witness(f"Produce of sequence {batch.sequence}", told.error_code)
            return True
        return False

    def _request(self, batch: _Batch) -> produce.ProduceRequest:
        data = produce.PartitionProduceData(
            index=self._partition.partition, records=bytearray(batch.data)
        )
        return produce.ProduceRequest(
            acks=self._random.choice((-1, 1)),
            timeout_ms=30_000,
            topic_data=[
                produce.TopicProduceData(name=self._partition.topic, partition_data=[data])
            ],
        )

    def _give_up(self) -> None:
        """Begin anew, as a client does whose partition has lost what was acknowledged."""
        if not (self._has_begun_late and self._batches[0].sequence == 0):
            self._seen.witnesses.append(
                f"refused: {self.name}: {self._partition}: sequence {self._batches[0].sequence} is"
                f" refused for good"
            )
        self._batches.clear()
        self._producer_id, self._epoch, self._sequence = -1, 0, 0

    def _note(self, batch: _Batch, base_offset: int) -> None:
        self._is_fenced = True
        now_s = asyncio.get_running_loop().time()
        for index, one in enumerate(batch.records):
            if one.offset not in (-1, base_offset + index):
                self._seen.witnesses.append(
                    f"moved: {one.value} was at {one.offset}, a retry says {base_offset + index}"
                )
            one.offset, one.told_s = base_offset + index, min(one.told_s, now_s)

    def _witness(self, what: str, code: int) -> None:
        self._seen.witnesses.append(
            f"refused: {self.name}: {self._partition}: {what} answered {ErrorCode(code).name}"
        )
