"""A cleaner at work on a log that is handed over, or deleted, meanwhile.

Nothing fences its commits from the next leader: the node has its lease, and its incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import pytest

from logstore.cleaner.plan import cleanable_of
from logstore.cleaner.run import Cleaning, Overtaken
from logstore.remote.commit_store import LogKey, StoredLog, Wanted
from tests.logstore.compaction import KeyedTraffic
from tests.logstore.partitions import batch_of
from tests.logstore.remote.simulated_store import SimulatedDatabase
from tests.logstore.remote.test_remote_directory import CONFIG, TOPIC_ID, Node, fill
from wire.error_code import ErrorCode
from wire.records import BatchHeader

_T = TypeVar("_T")

KEY = LogKey(TOPIC_ID, 0)


class Nodes(NamedTuple):
    """Two nodes over one database."""

    first: Node
    second: Node

    def stored(self) -> StoredLog:
        return self.first.database.load(Wanted(KEY, 0))


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    database = SimulatedDatabase()
    made = Nodes(Node(database, 1, tail_bytes=600), Node(database, 2))
    yield made
    for node in made:
        await node.directory.close()
        node.group_commit.close()


async def _here(work: Callable[[], _T]) -> _T:
    return work()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_it_swaps_nothing(nodes: Nodes, is_deleted: bool) -> None:
    """The next leader may have merged more segments by then: what it has appended would go. And the
    rows of a deleted topic would be there again."""
    node = nodes.first
    log, other = await node.open(), await node.open(partition=1)
    await fill(log, 30)
    replacement = log.ledger.segments.replacement([*log.ledger.segments.base_offsets][:2])
    assert replacement is not None
    kept = batch_of(b"kept")
    replacement.append(kept, BatchHeader.parse(kept))
    replacement.seal(b"")
    if is_deleted:
        await node.directory.delete([log])
        async with asyncio.timeout(10):
            while node.database.keys() & {KEY}:
                await asyncio.sleep(0.001)
    else:
        await node.directory.release([log])
    before = nodes.stored()
    swapping = asyncio.ensure_future(replacement.swap(_here, lambda: None))
    await fill(other, 1)
    assert nodes.stored() == before
    assert not await swapping


async def test_it_takes_nothing_for_damage(nodes: Nodes) -> None:
    """The next leader compacts segments that the former one has yet to read."""
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    log = await nodes.first.open(config=config)
    traffic = KeyedTraffic(log)
    for number in range(60):
        traffic.write(0, [b"a", b"%d" % (number % 7)], transactional=False)
        await log.durable(log.log_end_offset)
    log.ledger.roll()
    now_ms = traffic.now_ms

    async def handed_over(work: Callable[[], _T]) -> _T:
        if not log.is_gone:
            log.become_moved(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await nodes.first.directory.release([log])
            next_log = await nodes.second.open(epoch=2, config=config)
            found = cleanable_of(next_log, now_ms)
            await Cleaning(next_log, found, now_ms, run=_here, pause=lambda _: None).perform()
        return work()

    found = cleanable_of(log, now_ms)
    cleaning = Cleaning(log, found, now_ms, run=handed_over, pause=lambda _: None)
    with pytest.raises(Overtaken):
        await cleaning.perform()
