"""A client whose rights to read and to write one topic come and go."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from tests.simulation.access import ANSWER_S, GUARDED, GUARDED_PARTITIONS, Rights, codes_of, told
from tests.simulation.clients.connection import Connection
from tests.simulation.clients.forbidden import Forbidden, Target, reading, writing
from tests.simulation.observations import Observations, Unreadable, records_of
from tests.simulation.simulated_broker import Gone
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import fetch, produce

#: A session that a broker has ended, or that a lost answer has moved on.
_NO_SESSION = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class Guest:
    """Reads and writes as it likes: in sessions and without, waiting and not, by name and by id."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        rights: Rights,
        topic_id: UUID,
        seen: Observations,
        random: Random,
    ) -> None:
        self.name = name
        self.is_ending = False
        #: Answers with data, refusals, and answers that say nothing.
        self.counts = {"data": 0, "refused": 0, "nothing": 0}
        self._connection = connection
        self._rights = rights
        self._topic_id = topic_id
        self._seen = seen
        self._random = random
        #: The session of the last fetch: its id, epoch and version.
        self._session = (0, 0, 0)
        indexes = [("partition_index", index) for index in range(GUARDED_PARTITIONS)]
        self._known = [("topic", GUARDED), ("topic_id", topic_id), *indexes]
        #: Of the last record that it wrote.
        self._number = 0

    @property
    def _value(self) -> bytes:
        return f"{self.name}/{self._number}".encode()

    async def run(self) -> None:
        """Ask until told to end."""
        while not self.is_ending:
            try:
                await self._ask()
                await asyncio.sleep(self._random.choice((0, 0.01, 0.1)))
            except Gone:
                self._session = (0, 0, 0)
                await asyncio.sleep(self._random.choice((0.01, 0.1, 0.5)))

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        asked = self._next()
        asked_s = loop.time()
        answer = await self._connection.ask(asked.request, asked.response_class, asked.version)
        self._remember(asked, answer)
        self._judge(asked, answer, asked_s, loop.time())

    def _next(self) -> Forbidden:
        random = self._random
        session_id, epoch, version = self._session
        wait_ms = random.choice((0, 100, 600, 600, 2_500))
        if session_id and random.random() < 0.7:
            request = fetch.FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=random.choice((1, 100_000)),
                max_bytes=100_000,
                session_id=session_id,
                session_epoch=epoch,
            )
            return Forbidden(request, version, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = random.randrange(GUARDED_PARTITIONS)
        target = Target(random, GUARDED, self._topic_id, "group", "tx0", partition)
        if random.random() < 0.3:
            self._number += 1
            return writing(target._replace(partition=0), self._value)
        return reading(target, wait_ms)

    def _remember(self, asked: Forbidden, answer: Message) -> None:
        if not isinstance(asked.request, fetch.FetchRequest):
            return
        assert isinstance(answer, fetch.FetchResponse)
        epoch = asked.request.session_epoch + 1
        is_open = answer.session_id and not answer.error_code
        self._session = (answer.session_id, epoch, asked.version) if is_open else (0, 0, 0)

    def _judge(self, asked: Forbidden, answer: Message, asked_s: float, told_s: float) -> None:
        codes = codes_of(answer) - _NO_SESSION
        # What is asked in a session was named before.
        found = told(asked.request, answer, self._known)
        name = type(asked.request).__name__
        if codes - {asked.code}:
            self._witness(f"{name} answered {codes}")
        elif codes:
            self.counts["refused"] += 1
            if isinstance(asked.request, produce.ProduceRequest):
                self._seen.refused.add(self._value.decode())
            rights = self._rights.enough_for(asked.request.api_key)
            if any(one.surely_held(asked_s, told_s) for one in rights):
                self._witness(f"{name} was refused at {told_s:.3f}, and the right was there")
            if found:
                self._witness(f"{name} was refused, with {found}")
        elif found:
            self.counts["data"] += 1
            self._check_data(asked, answer, found, asked_s, told_s)
        else:
            self.counts["nothing"] += 1

    def _check_data(
        self, asked: Forbidden, answer: Message, found: list[str], asked_s: float, told_s: float
    ) -> None:
        """Check that the right to data was there when the broker read it, and not long before."""
        first_s = asked_s
        if not self._connection.has_read_slowly:
            first_s = max(asked_s, told_s - ANSWER_S)
        for value in _values(answer):
            made_s = [one.made_s for one in self._seen.sent if one.value == value]
            first_s = max([first_s, *made_s])
        rights = self._rights.enough_for(asked.request.api_key)
        if not any(one.may_have_held(first_s, told_s) for one in rights):
            name = type(asked.request).__name__
            when = f"asked at {asked_s:.3f}, told at {told_s:.3f}"
            self._witness(f"{name} {when} without the right: {found[:3]}")

    def _witness(self, sentence: str) -> None:
        self._seen.witnesses.append(f"access: {self.name}: {sentence}")


def _values(answer: Message) -> set[str | None]:
    """Return the values of the records in an answer."""
    if not isinstance(answer, fetch.FetchResponse):
        return set()
    values: set[str | None] = set()
    for topic in answer.responses:
        for data in topic.partitions:
            content = data.records or b""
            assert isinstance(content, bytes | bytearray | memoryview)
            try:
                records, _ = records_of(content, iter(()), 0, is_committed=False)
            except Unreadable:
                # Readers of that topic say so.
                continue
            values |= {one.value for one in records}
    return values
