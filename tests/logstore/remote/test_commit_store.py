"""The contract of `CommitStore`: simulated, and in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from logstore.remote.commit_store import (
    AttachmentChange,
    Basis,
    BasisLost,
    Changes,
    Chunk,
    Commit,
    CommitStore,
    Fenced,
    Forgotten,
    LogKey,
    LogStart,
    Move,
    OutcomeUnknown,
    Span,
    StoredLog,
    StoredSegment,
    Swap,
    Wanted,
)
from logstore.remote.postgres_store import PostgresStore
from logstore.remote.references import Reference
from tests.logstore.remote.simulated_store import SimulatedDatabase, SimulatedStore
from tests.logstore.remote.stored_nodes import lease_until_ms, make_tables, start_node
from tests.postgresql import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

KEY, OTHER = LogKey(UUID(int=7), 3), LogKey(UUID(int=7), 4)


class Place:
    """A database, simulated or not, with node 1 in it."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._simulated = SimulatedDatabase(lambda: time.monotonic_ns() // 1_000_000)
        self._is_made = False

    async def store(self, incarnation: int = 5, node_id: int = 1) -> CommitStore:
        """Return a connected store of that incarnation."""
        store = SimulatedStore(self._simulated) if self._url is None else PostgresStore(self._url)
        store.begin_as(node_id, incarnation)
        await store.connect()
        return store

    async def start(self, incarnation: int = 5, node_id: int = 1) -> CommitStore:
        """Let that incarnation write from here on."""
        self._simulated.start_node(node_id, incarnation)
        if self._url is not None:
            if not self._is_made:
                await make_tables(self._url)
                self._is_made = True
            await start_node(self._url, node_id, incarnation)
        return await self.store(incarnation, node_id)

    async def lease_until_ms(self) -> int:
        """Return when the lease of node 1 ends, by the database's clock."""
        if self._url is None:
            return self._simulated.nodes[1].lease_until_ms
        return await lease_until_ms(self._url, 1)


@pytest.fixture(params=["simulated", "postgresql"])
async def place(request: pytest.FixtureRequest) -> Place:
    is_simulated = request.param == "simulated"
    return Place(None if is_simulated else request.getfixturevalue("postgres_url"))


@pytest.fixture
async def store(place: Place) -> AsyncIterator[CommitStore]:
    store = await place.start()
    yield store
    await store.close()


def chunk(base_offset: int, data: bytes = b"data", key: LogKey = KEY) -> Chunk:
    return Chunk(key, base_offset, base_offset + len(data), data)


def segment(base_offset: int, end_offset: int) -> StoredSegment:
    return StoredSegment(KEY, base_offset, end_offset, end_offset - base_offset, 1_000)


async def write(store: CommitStore, changes: Changes) -> None:
    last = await store.last_commit()
    await store.commit(Commit(last + 1, last, changes))


async def load(store: CommitStore, key: LogKey = KEY, from_offset: int | None = 0) -> StoredLog:
    (log,) = await store.load([Wanted(key, from_offset)])
    return log


async def test_nothing_is_stored_at_first(store: CommitStore) -> None:
    assert await store.last_commit() == 0
    log = await load(store)
    assert (log.start_offset, [*log.segments], dict(log.attachments)) == (0, [], {})
    assert [*log.chunks] == [] and log.first_offset is None
    assert [*await store.read(KEY, 0, 100, 100)] == []


async def test_a_commit_is_there_whole(store: CommitStore) -> None:
    await store.commit(
        Commit(
            1,
            0,
            Changes(
                [chunk(0), chunk(4), chunk(9, key=OTHER)],
                [segment(0, 4)],
                [LogStart(OTHER, 9)],
                [AttachmentChange(KEY, "a", b"one"), AttachmentChange(OTHER, "b", b"")],
            ),
        )
    )
    assert await store.last_commit() == 1
    first, second = await store.load([Wanted(KEY, 0), Wanted(OTHER, None)])
    assert [*first.chunks] == [chunk(0), chunk(4)] and [*first.segments] == [segment(0, 4)]
    assert dict(first.attachments) == {"a": b"one"} and first.first_offset == 0
    assert [*second.chunks] == [chunk(9, key=OTHER)] and second.start_offset == 9
    assert dict(second.attachments) == {"b": b""} and second.first_offset == 9


@pytest.mark.parametrize("count", [0, 1, 2, 8, 9, 20])
async def test_a_commit_of_any_number_of_chunks_is_there_whole(
    store: CommitStore, count: int
) -> None:
    chunks = [chunk(4 * at, bytes([at]) * 4, KEY if at % 3 else OTHER) for at in range(count)]
    await store.commit(Commit(1, 0, Changes(chunks)))
    assert await store.last_commit() == 1
    with pytest.raises(Fenced):
        await store.commit(Commit(1, 0, Changes([chunk(1_000)] * count)))
    first, second = await store.load([Wanted(KEY, 0), Wanted(OTHER, 0)])
    assert [*first.chunks] == [one for one in chunks if one.key == KEY]
    assert [*second.chunks] == [one for one in chunks if one.key == OTHER]


@pytest.mark.parametrize(
    "changes",
    [Changes([chunk(0)]), Changes(attachments=[AttachmentChange(KEY, "a", b"x")])],
)
async def test_a_commit_behind_another_than_the_last_one_has_no_effect(
    store: CommitStore, changes: Changes
) -> None:
    await store.commit(Commit(3, 0))
    for previous in (0, 2, 4):
        with pytest.raises(Fenced):
            await store.commit(Commit(5, previous, changes))
    swaps = [Swap(segment(0, 4), [chunk(0)])]
    with pytest.raises(Fenced):
        await store.commit(Commit(5, 4, changes._replace(swaps=swaps)))
    assert await store.last_commit() == 3
    log = await load(store)
    assert not (log.chunks or log.attachments or log.segments)
    await store.commit(Commit(5, 3, changes))
    assert await store.last_commit() == 5


async def test_a_proof_is_of_a_commit_that_is_there(place: Place) -> None:
    store = await place.start(5)
    assert store.proven == 0
    await store.commit(Commit(1, 0))
    await store.commit(Commit(2, 1))
    await store.prove(2)
    assert store.proven == 2
    with pytest.raises(OutcomeUnknown):
        await store.prove(3)
    later = await place.start(6)
    with pytest.raises(OutcomeUnknown):
        await store.prove(1)
    with pytest.raises(OutcomeUnknown):
        await later.prove(1)
    assert later.proven == 0
    await store.close()
    await later.close()


async def test_a_lease_is_renewed_without_a_commit(place: Place) -> None:
    earlier = await place.start(5)
    await earlier.commit(Commit(1, 0))
    before = await place.lease_until_ms()
    await asyncio.sleep(0.01)
    await earlier.renew()
    assert await place.lease_until_ms() > before
    assert await earlier.last_commit() == 1
    later = await place.start(6)
    with pytest.raises(Fenced):
        await earlier.renew()
    await later.renew()
    await earlier.close()
    await later.close()


async def test_an_earlier_incarnation_is_fenced_and_reads_on(place: Place) -> None:
    earlier = await place.start(5)
    await write(earlier, Changes([chunk(0)]))
    later = await place.start(6)
    with pytest.raises(Fenced):
        await earlier.commit(Commit(2, 1, Changes([chunk(4)])))
    with pytest.raises(Fenced):
        await earlier.last_commit()
    assert await later.last_commit() == 0
    await write(later, Changes([chunk(4, b"later")]))
    assert [*(await load(earlier)).chunks] == [chunk(0), chunk(4, b"later")]
    await earlier.close()
    await later.close()


async def test_an_incarnation_that_is_not_there_any_more_was_forgotten(place: Place) -> None:
    await (await place.start(5)).close()
    # As where a standby was promoted that lacked the last start.
    later = await place.store(6)
    with pytest.raises(Forgotten):
        await later.last_commit()
    with pytest.raises(Fenced):
        await later.commit(Commit(1, 0, Changes([chunk(0)])))
    later.begin_as(2, 5)
    with pytest.raises(Forgotten):
        await later.last_commit()
    await later.close()


async def test_attachments_are_replaced_appended_to_and_deleted(store: CommitStore) -> None:
    def change(name: str, data: bytes | None, *, is_append: bool = False) -> AttachmentChange:
        return AttachmentChange(KEY, name, data, is_append)

    await write(
        store,
        Changes(attachments=[change("a", b"1"), change("b", b"2"), change("c", b"3")]),
    )
    await write(
        store,
        Changes(
            attachments=[
                change("a", b"+1", is_append=True),
                change("b", None),
                change("c", b"new"),
                change("d", b"4", is_append=True),
                change("e", None),
            ]
        ),
    )
    assert dict((await load(store)).attachments) == {"a": b"1+1", "c": b"new", "d": b"4"}


async def test_a_start_never_moves_back_and_removes_what_lies_below(store: CommitStore) -> None:
    chunks = [chunk(offset) for offset in (0, 4, 8, 12)]
    await write(store, Changes([*chunks, chunk(0, key=OTHER)], [segment(0, 8), segment(8, 12)]))
    await write(store, Changes(starts=[LogStart(KEY, 9)]))
    log = await load(store)
    assert (log.start_offset, len(log.chunks), len(log.segments)) == (9, 4, 2)
    await write(store, Changes(starts=[LogStart(KEY, 5, 8)]))
    log = await load(store)
    assert log.start_offset == 9 and [*log.chunks] == chunks[2:]
    assert [*log.segments] == [segment(8, 12)] and log.first_offset == 8
    assert len((await load(store, OTHER)).chunks) == 1


async def test_a_log_is_loaded_from_the_chunk_before(store: CommitStore) -> None:
    chunks = [chunk(offset) for offset in (0, 4, 8, 12)]
    await write(store, Changes(chunks, [segment(0, 4), segment(4, 8)]))

    async def bases(from_offset: int | None) -> list[int]:
        log = await load(store, from_offset=from_offset)
        assert log.first_offset == 0
        return [one.base_offset for one in log.chunks]

    assert await bases(0) == [0, 4, 8, 12]
    assert await bases(4) == [0, 4, 8, 12]
    assert await bases(5) == [4, 8, 12]
    assert await bases(None) == [4, 8, 12], "the active segment begins at 8"
    assert await bases(100) == [12]


async def test_chunks_are_read_within_limits(store: CommitStore) -> None:
    # The cleaner has left nothing in [8, 20).
    chunks = [chunk(0), chunk(4), chunk(20, b"larger than others"), chunk(38)]
    await write(store, Changes(chunks))

    async def bases(offset: int, max_bytes: int, end_offset: int = 1_000) -> list[int]:
        found = await store.read(KEY, offset, max_bytes, end_offset)
        assert all(one in chunks for one in found)
        return [one.base_offset for one in found]

    assert await bases(0, 1_000) == [0, 4, 20, 38]
    assert await bases(3, 8) == [0, 4]
    assert await bases(3, 7) == [0]
    assert await bases(4, 1) == [4], "the first one whole"
    assert await bases(8, 1) == [20], "the next one after a gap"
    assert await bases(0, 1_000, 20) == [0, 4]
    assert await bases(0, 1_000, 21) == [0, 4, 20]
    assert await bases(8, 1_000, 20) == []
    assert await bases(42, 1_000) == []


async def test_a_swap_takes_the_place_of_segments(store: CommitStore) -> None:
    chunks = [chunk(offset) for offset in (0, 4, 8, 12)]
    await write(store, Changes(chunks, [segment(0, 4), segment(4, 8), segment(8, 12)]))
    merged = StoredSegment(KEY, 0, 8, 2, 7)
    swap = Swap(merged, [Chunk(KEY, 0, 1, b"x"), Chunk(KEY, 4, 8, b"y")])
    changes = Changes([chunk(16)], attachments=[AttachmentChange(KEY, "a", b"1")], swaps=[swap])
    await write(store, changes)
    log = await load(store)
    assert [*log.chunks] == [*swap.chunks, chunks[2], chunks[3], chunk(16)]
    assert [*log.segments] == [merged, segment(8, 12)]
    assert dict(log.attachments) == {"a": b"1"}
    await write(store, Changes(swaps=[Swap(merged._replace(size_bytes=0), [])]))
    log = await load(store)
    assert log.first_offset == 8 and [one.size_bytes for one in log.segments] == [0, 4]


async def test_a_move_takes_the_place_of_chunks_and_of_nothing_else(store: CommitStore) -> None:
    other = LogKey(KEY.topic_id, KEY.partition + 1)
    chunks = [chunk(offset) for offset in (0, 4, 8, 12)]
    untouched = chunk(4, key=other)
    await write(store, Changes([*chunks, untouched], [segment(0, 4), segment(4, 8)]))
    reference = Chunk(KEY, 4, 12, Reference("logs/a", 17, 8).encode())
    start = LogStart(KEY, 2)
    move = Move(KEY, 4, 12, [reference])
    await write(store, Changes([chunk(16)], starts=[start], moves=[move]))
    log = await load(store)
    assert [*log.chunks] == [chunks[0], reference, chunks[3], chunk(16)]
    assert [*log.segments] == [segment(0, 4), segment(4, 8)]
    assert log.start_offset == 2
    assert [*(await load(store, other)).chunks] == [untouched]

    async def references(*spans: Span) -> list[bytes]:
        return [data async for some in store.references(spans) for data in some]

    assert await references(Span(KEY, 0, 99), Span(other, 0, 99)) == [reference.data]
    assert await references(Span(other, 0, 99)) == []
    assert await references(Span(KEY, 4, 5)) == [reference.data]
    assert await references(Span(KEY, 0, 4)) == await references(Span(KEY, 5, 12)) == []
    await write(store, Changes(starts=[LogStart(KEY, 12, 12)]))
    assert await references(Span(KEY, 0, 99)) == []


async def test_reclaiming_changes_nothing_that_is_read(store: CommitStore) -> None:
    await write(store, Changes([chunk(0), chunk(4)]))
    await write(store, Changes(starts=[LogStart(KEY, 4, 4)]))
    await store.reclaim(0)
    assert [*(await load(store)).chunks] == [chunk(4)]


async def test_a_deleted_log_leaves_nothing(store: CommitStore) -> None:
    changes = Changes(
        [chunk(0), chunk(0, key=OTHER)],
        [segment(0, 4)],
        [LogStart(KEY, 1)],
        [AttachmentChange(KEY, "a", b"1")],
    )
    await write(store, changes)
    await store.delete([KEY])
    log = await load(store)
    assert (log.start_offset, [*log.chunks], [*log.segments]) == (0, [], [])
    assert not log.attachments and len((await load(store, OTHER)).chunks) == 1


async def test_what_is_left_of_a_topic_is_found_in_every_table(store: CommitStore) -> None:
    topic_id, other = UUID(int=11), UUID(int=12)
    keys = [LogKey(topic_id, index) for index in range(4)]
    changes = Changes(
        [chunk(0, key=keys[0]), chunk(4, key=keys[0]), chunk(0, key=LogKey(other, 0))],
        [segment(0, 4)._replace(key=keys[1])],
        [LogStart(keys[2], 1)],
        [AttachmentChange(keys[3], "a", b"1")],
    )
    await write(store, changes)
    assert sorted(await store.remains({topic_id, UUID(int=13)})) == keys
    await store.delete(await store.remains({topic_id}))
    assert [*await store.remains({topic_id, other})] == [LogKey(other, 0)]


@pytest.mark.parametrize(
    "changes",
    [
        Changes([chunk(4)]),
        Changes([chunk(4)], attachments=[AttachmentChange(KEY, "a", b"one")]),
        Changes(moves=[Move(KEY, 0, 4, [chunk(0, b"moved"[:4])])]),
    ],
    ids=["chunks", "attachments", "moves"],
)
async def test_a_commit_is_nothing_without_what_it_rests_on(
    place: Place, store: CommitStore, changes: Changes
) -> None:
    other = await place.start(9, node_id=2)
    await write(store, Changes([chunk(0)]))
    await write(other, Changes([chunk(0, key=OTHER)]))
    before = await load(store)
    resting = Commit(2, 1, changes, [Basis(2, 9, 1), Basis(2, 9, 2)])
    with pytest.raises(Fenced):
        await store.commit(resting)
    assert not await store.has(resting.rests_on)
    assert (await store.last_commit(), await load(store)) == (1, before)
    await write(other, Changes())
    assert await store.has(resting.rests_on)
    await store.commit(resting)
    assert await store.last_commit() == 2 and await load(store) != before
    await other.close()


async def test_what_an_incarnation_has_written_is_no_basis_after_its_successor(
    place: Place, store: CommitStore
) -> None:
    other = await place.start(9, node_id=2)
    await write(other, Changes())
    bases = [Basis(2, 9, 1)]
    assert await store.has(bases) and not await store.has([Basis(3, 1, 1)])
    later = await place.start(10, node_id=2)
    await write(later, Changes())
    with pytest.raises(BasisLost, match="commit 1 of incarnation 9 of node 2"):
        await store.has(bases)
    with pytest.raises(Fenced):
        await store.commit(Commit(1, 0, Changes([chunk(0)]), bases))
    assert [*(await load(store)).chunks] == []
    await other.close()
    await later.close()
