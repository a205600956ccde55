"""A fleet that writes jointly: each round its children write and vote, and the parent decides.

The parent does what a driver of such a fleet has to: it fences the votes that are not of its round,
seals by sending its offsets, looks whether the votes are exactly those it was told of, and only
then commits. What it wrote itself and what its children wrote, in one history entry, must be there
together or not at all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from coordinator.transactions.metadata import ProducerIdentity
from tests.simulation.history import Transaction
from tests.simulation.simulated_broker import Gone
from tests.simulation.workers import PATIENCE, TARGETS, TIMEOUT_MS, Fenced, Worker
from wire.messages import describe_transactions, init_producer_id
from wire.transaction_tags import CHILDREN_TAG, VOTED_TAG, decode_children

SEPARATOR = "~>"


async def init(worker: Worker, transactional_id: str) -> ProducerIdentity:
    """Return a child's identity, or fence it; Fenced: it waits too long for its parent."""
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )
    for _ in range(50):
        answer = await worker._ask(request, init_producer_id.InitProducerIdResponse, 5)
        if answer.error_code not in worker.again:
            worker._check(answer.error_code, "InitProducerId of a child")
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)
        await asyncio.sleep(0.02)
    raise Fenced


@dataclass
class Child(Worker):
    """One child in one round, of either transaction version."""

    #: Told apart from other children of its round by the values that it writes.
    number: int = 0
    #: Whose vote it is, once given: of version 2 one epoch later than its data.
    voter: ProducerIdentity | None = None

    async def vote(self, one: Transaction) -> None:
        """Write as part of `one`, and vote. Fenced, Gone: it may have voted or not."""
        self._incarnation = self.world.incarnations
        self.identity = await init(self, self.transactional_id)
        partitions = self.random.sample(TARGETS, self.random.randint(1, 2))
        if not self.is_v2:
            await self._add_partitions(partitions)
        for number, partition in enumerate(partitions):
            await self._produce(one, [partition], 10 * self.number + number)
            await self._perhaps_pause()
        producer_id, producer_epoch = self.identity
        await self._end(replace(one, values={}), commit=True)
        self.voter = ProducerIdentity(producer_id, producer_epoch + self.is_v2)


@dataclass
class Parent(Worker):
    """The worker whose transaction decides."""

    async def _transact(self, offset: int) -> int:
        self._count += 1
        self._incarnation = self.world.incarnations
        to_offset = offset + self.random.randint(1, 3)
        one = self.history.begin(f"{self.name}.{self._count}", self.key, offset, to_offset)
        children = self._children()
        voting = [asyncio.create_task(self._voted(child, one)) for child in children]
        voted = await asyncio.gather(*map(self.world.mine, voting))
        names = {child.transactional_id for child in children}
        for other in sorted((await self._votes()).keys() - names):
            await init(self, other)
        await self._perhaps_pause()
        if not children or self.random.random() < 0.5:
            partition = self.random.choice(TARGETS)
            if not self.is_v2:
                await self._add_partitions([partition])
            await self._produce(one, [partition], 0)
        await self._send_offsets(to_offset)
        if self.random.random() < self.luck.give_up:
            raise Fenced
        # A rival's child of the same name has another epoch.
        wanted = {child.transactional_id: child.voter for child in children}
        is_whole = all(voted) and await self._votes() == wanted
        commit = is_whole and self.random.random() >= self.luck.abort
        await self._perhaps_pause()
        await self._end(one, commit=commit)
        if not commit:
            return offset
        found = await self._fetch_offset()
        if found < to_offset:
            self._witness(f"{one.name} committed {to_offset}, a fetch after it says {found}")
        return to_offset

    def _children(self) -> list[Child]:
        """Return the children of this round; ids are the fleet's, or of this round alone."""
        is_fleet = self.random.random() < 0.5
        return [
            Child(
                self.world,
                self.history,
                self.random,
                f"{self.name}.{self._count}.{number}",
                f"{self.transactional_id}{SEPARATOR}"
                + (f"fleet.{number}" if is_fleet else f"{self.name}.{self._count}.{number}"),
                self.key,
                self.random.random() < 0.5,
                self.luck,
                self.again,
                self.again_of_nodes,
                number=number,
            )
            for number in range(1, self.random.randint(1, 4))
        ]

    async def _voted(self, child: Child, one: Transaction) -> bool:
        """Whether the child was told that it has voted."""
        try:
            await child.vote(one)
        except (Fenced, Gone):
            return False
        return True

    async def _votes(self) -> dict[str, ProducerIdentity]:
        """Return all votes for this parent, by id."""
        (parent,) = await self._describe([self.transactional_id])
        children = dict(parent.unknown_tags).get(CHILDREN_TAG)
        described = await self._describe(decode_children(children)) if children else []
        return {
            each.transactional_id: ProducerIdentity(each.producer_id, each.producer_epoch)
            for each in described
            if VOTED_TAG in dict(each.unknown_tags)
        }

    async def _describe(
        self, transactional_ids: list[str]
    ) -> list[describe_transactions.TransactionState]:
        request = describe_transactions.DescribeTransactionsRequest(
            transactional_ids=transactional_ids
        )
        response_class = describe_transactions.DescribeTransactionsResponse
        for _ in range(PATIENCE):
            answer = await self._ask(request, response_class, 0)
            if answer.transaction_states[0].error_code not in self.again_of_nodes:
                break
            await asyncio.sleep(0.02)
        return answer.transaction_states
