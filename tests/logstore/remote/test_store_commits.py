"""What `StoreCommits` makes of commits whose outcome is unknown, of fences, and of lost commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from logstore.disk.files import StorageFailure
from logstore.remote.commit_store import (
    LEASE_MS,
    NOTHING,
    Basis,
    Changes,
    Chunk,
    Commit,
    CommitsLost,
    LogKey,
    Move,
    NodeFenced,
    NoRoom,
    OutcomeUnknown,
    Wanted,
)
from logstore.remote.remote_ledger import RemoteSync
from logstore.remote.store_commits import LEASE_MARGIN_MS, StoreCommits
from tests.logstore.remote.simulated_store import Mishap, SimulatedDatabase, SimulatedStore
from tests.logstore.remote_stores import KEY


class World:
    """One node's commits, by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.troubles: list[str] = []
        self.database = SimulatedDatabase(lambda: self.now_ms)
        self.database.start_node(1, 5)
        self.store = SimulatedStore(self.database, 1, 5)
        self.commits = StoreCommits(
            self.store, now_ms=lambda: self.now_ms, on_trouble=self.troubles.append
        )
        self.offset = 0
        self.rooms = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def commit(self, *mishaps: Mishap) -> None:
        """Commit one chunk more, and return as group commit is told. Raises its failure."""
        self.store.mishaps.extend(mishaps)
        chunk = Chunk(KEY, self.offset, self.offset + 1, b"x")
        self.offset += 1
        await self.perform([RemoteSync(0, NOTHING), _sync(chunk)])

    async def perform(self, syncs: Sequence[RemoteSync]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        has_room = asyncio.Event()
        before, self._has_room = self._has_room, has_room
        await before.wait()

        def make_room() -> None:
            self.rooms += 1
            has_room.set()

        def tell(error: OSError | StorageFailure | None) -> None:
            has_room.set()
            done.set_result(None) if error is None else done.set_exception(error)

        self.commits.perform(syncs, tell, make_room, settles=False)
        await done

    def stored(self, key: LogKey = KEY) -> list[int]:
        return [chunk.base_offset for chunk in self.database.load(Wanted(key, 0)).chunks]

    @property
    def number(self) -> int:
        return self.database.nodes[1].number


def _sync(chunk: Chunk) -> RemoteSync:
    return RemoteSync(chunk.end_offset, Changes([chunk]))


@pytest.fixture
async def world() -> World:
    world = World()
    await world.commits.begin()
    return world


async def test_commits_follow_one_another(world: World) -> None:
    await world.commit()
    await world.commit()
    await world.perform([])
    assert (world.stored(), world.number, world.troubles) == ([0, 1], 3, [])


async def test_a_commit_that_has_not_landed_is_sent_again(world: World) -> None:
    await world.commit(Mishap.REQUEST_LOST, Mishap.NONE, Mishap.REQUEST_LOST)
    assert (world.stored(), world.number) == ([0], 1)
    assert len(world.troubles) == 2


async def test_a_commit_that_has_landed_is_not_sent_again(world: World) -> None:
    await world.commit(Mishap.REPLY_LOST)
    assert (world.stored(), world.number) == ([0], 1)
    await world.commit()
    assert (world.stored(), world.number) == ([0, 1], 2)


async def test_a_proof_that_is_lost_is_asked_for_again(world: World) -> None:
    world.store.proof_mishaps.extend([Mishap.REQUEST_LOST, Mishap.REPLY_LOST])
    await world.commit()
    assert (world.stored(), world.number, len(world.troubles)) == ([0], 1, 2)
    world.database.fail_over()
    assert world.stored() == [0]


async def test_the_next_commit_begins_before_the_proof_of_the_one_before(world: World) -> None:
    proving = world.store.prove
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def prove(number: int) -> None:
        asked.set()
        await let_go.wait()
        await proving(number)

    world.store.prove = prove  # type: ignore[method-assign]  # a distant standby
    first = asyncio.ensure_future(world.commit())
    await asked.wait()
    assert world.rooms == 1
    asked.clear()
    second = asyncio.ensure_future(world.commit())
    await asked.wait()
    assert (world.rooms, world.stored()) == (2, [0, 1])
    assert not (first.done() or second.done())
    let_go.set()
    await asyncio.gather(first, second)


async def test_what_fails_together_is_mended_once(world: World) -> None:
    connects = 0
    connect = world.store.connect

    async def counted() -> None:
        nonlocal connects
        connects += 1
        await asyncio.sleep(0.001)
        await connect()

    world.store.connect = counted  # type: ignore[method-assign]  # counted
    world.store.proof_mishaps.extend([Mishap.REQUEST_LOST, Mishap.REQUEST_LOST])
    first = asyncio.ensure_future(world.commit())
    await asyncio.sleep(0)
    await asyncio.gather(first, world.commit(Mishap.REQUEST_LOST), world.commit())
    assert world.stored() == [0, 1, 2]
    assert connects <= 3, "once for each mishap"


async def test_what_a_recovery_has_sent_is_not_sent_beside_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asking, begun = world.store, world.store.last_commit, asyncio.Event()

    async def take_turns() -> None:
        await asyncio.sleep(0)

    async def ask_a_server_without_a_standby() -> int:
        begun.set()
        await asyncio.sleep(0.002)
        store.has_standby = False
        return await asking()

    monkeypatch.setattr(store, "_delay", take_turns)
    monkeypatch.setattr(store, "last_commit", ask_a_server_without_a_standby)
    store.proof_mishaps.append(Mishap.REQUEST_LOST)
    commits = [asyncio.ensure_future(world.commit()) for _ in range(3)]
    await begun.wait()
    # The second one waits for the recovery, which sends it; then the third one follows.
    await asyncio.gather(*commits)
    assert (world.stored(), len(world.troubles)) == ([0, 1, 2], 1)


async def test_what_replaces_batches_is_not_overtaken(world: World) -> None:
    await world.commit()
    assert world.rooms == 1
    moves = [Move(KEY, 0, 1, [Chunk(KEY, 0, 1, b"y")])]
    await world.perform([RemoteSync(1, Changes(moves=moves))])
    assert world.rooms == 1


async def test_all_that_a_fail_over_takes_back_is_written_again_in_order(world: World) -> None:
    proving = world.store.prove
    count = 0

    async def prove(number: int) -> None:
        nonlocal count
        count += 1
        if count == 1:
            # The second commit is written meanwhile; then a standby takes over that has neither.
            await asyncio.sleep(0.002)
            world.database.fail_over()
            assert world.stored() == []
        await proving(number)

    world.store.prove = prove  # type: ignore[method-assign]  # a fail-over
    first = asyncio.ensure_future(world.commit())
    await asyncio.sleep(0.001)
    await asyncio.gather(first, world.commit())
    assert (world.stored(), world.number) == ([0, 1], 2)
    world.database.fail_over()
    assert world.stored() == [0, 1]


async def test_a_commit_that_a_standby_lacks_is_written_again(world: World) -> None:
    await world.commit()
    world.database.confirm()
    asking = world.store.last_commit

    async def ask_before_the_fail_over() -> int:
        last = await asking()
        if world.store.last_commit is not asking and last == 2:
            world.store.last_commit = asking  # type: ignore[method-assign]  # once
            world.database.fail_over()
        return last

    world.store.last_commit = ask_before_the_fail_over  # type: ignore[method-assign]  # a fault
    await world.commit(Mishap.REPLY_LOST)
    # Seen as the last one, lost with the primary, and written by the same number once more.
    assert (world.stored(), world.number) == ([0, 1], 2)
    await world.commit()
    assert (world.stored(), world.number) == ([0, 1, 2], 3)


async def test_a_late_copy_of_a_commit_has_no_effect(world: World) -> None:
    await world.commit(Mishap.LATE)
    await world.commit()
    await asyncio.sleep(0.002)
    assert (world.stored(), world.number) == ([0, 1], 2)


async def test_a_copy_that_lands_between_the_question_and_the_next_try_counts(
    world: World,
) -> None:
    asking = world.store.last_commit

    async def ask_too_early() -> int:
        last = await asking()
        await asyncio.sleep(0.003)
        return last

    world.store.last_commit = ask_too_early  # type: ignore[method-assign]  # a slow answer
    await world.commit(Mishap.LATE)
    assert (world.stored(), world.number) == ([0], 1)


async def test_a_store_that_takes_nothing_is_asked_seldom_and_told_of_once(world: World) -> None:
    committing = world.store.commit
    refused: list[Commit] = []

    async def refuse(commit: Commit) -> None:
        if len(refused) < 7:
            refused.append(commit)
            raise OutcomeUnknown("no space left on device")
        await committing(commit)

    world.store.commit = refuse  # type: ignore[method-assign]  # a full disk
    began_s = time.monotonic()
    await world.commit()
    # 20 ms, twice that, and so on.
    assert time.monotonic() - began_s > 0.6
    # By the first try, and by all later ones together.
    assert world.troubles == ["no space left on device"] * 2
    assert world.stored() == [0]


async def test_a_node_that_others_have_taken_over_is_fenced(world: World) -> None:
    await world.commit()
    world.database.start_node(1, 6)
    with pytest.raises(NodeFenced):
        await world.commit()
    assert world.stored() == [0]


async def test_a_node_that_was_taken_over_during_an_outage_is_fenced(world: World) -> None:
    world.store.is_cut = True
    commit = asyncio.ensure_future(world.commit())
    await asyncio.sleep(0)
    world.database.start_node(1, 6)
    world.store.is_cut = False
    with pytest.raises(NodeFenced):
        await commit
    assert world.stored() == []


async def test_lost_acknowledged_commits_are_told_of(world: World) -> None:
    await world.commit()
    # A standby that had not got what was acknowledged.
    world.database.nodes[1].number = 0
    with pytest.raises(CommitsLost, match="behind"):
        await world.commit()


async def test_a_lost_start_is_no_fence(world: World) -> None:
    await world.commit()
    # The standby had not got the node's start. No other node has taken anything over.
    world.database.start_node(1, 4)
    with pytest.raises(CommitsLost, match="forgotten incarnation 5 of node 1"):
        await world.commit()
    with pytest.raises(CommitsLost, match="forgotten incarnation 5 of node 1"):
        await world.commits.begin()


async def test_a_node_that_is_not_the_last_one_started_cannot_begin() -> None:
    world = World()
    world.database.start_node(1, 6)
    with pytest.raises(NodeFenced):
        await world.commits.begin()


async def test_the_end_of_the_own_lease_is_told_when_it_has_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.now_ms += round(seconds * 1000)
        if len(slept) == 1:
            await world.perform([])  # just in time

    await world.commit()
    world.now_ms = 1_000
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await world.commits.lease_ended()
    assert slept == [4.0, 5.0]
    assert not world.commits.is_leased


async def test_the_own_lease_ends_before_that_of_the_store(world: World) -> None:
    seen = [world.commits.is_leased]
    await world.commit()
    world.now_ms = LEASE_MS - LEASE_MARGIN_MS - 1
    seen.append(world.commits.is_leased)
    world.now_ms += 1
    seen.append(world.commits.is_leased)
    assert world.database.is_live(1)
    await world.perform([])
    assert [*seen, world.commits.is_leased] == [False, True, False, True]


async def test_a_proof_that_fails_at_once_is_not_asked_for_all_the_time(world: World) -> None:
    proving = world.store.prove
    asked = 0

    async def prove(number: int) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        raise OutcomeUnknown("too many connections")

    world.store.prove = prove  # type: ignore[method-assign]  # a server without a free connection
    commit = asyncio.ensure_future(world.commit())
    await asyncio.sleep(1)
    assert 2 <= asked <= 10
    assert world.troubles == ["too many connections"]
    world.store.prove = proving  # type: ignore[method-assign]  # one is free again
    await commit


async def test_the_lease_in_the_store_is_renewed_while_a_standby_is_away(world: World) -> None:
    proving = world.store.prove
    proofs: list[bool] = []

    async def prove(number: int) -> None:
        if len(proofs) < 10:
            world.now_ms += 4_000
            proofs.append(world.database.is_live(1))
            raise OutcomeUnknown("no answer")
        await proving(number)

    world.store.prove = prove  # type: ignore[method-assign]  # a standby that is away
    await world.commit()
    assert proofs == [True] * 10
    # But what is not proven renews nothing by the node's own clock.
    assert not world.commits.is_leased and world.number == 1


def refuse(world: World, refusals: Sequence[type[OutcomeUnknown]]) -> list[bool]:
    """Let the store refuse the next commits, each with the next of `refusals`.

    Each refusal takes 4 s. The list that is returned gets an entry then: whether the node's lease
    is alive.
    """
    committing = world.store.commit
    live: list[bool] = []

    async def commit(commit: Commit) -> None:
        if len(live) < len(refusals):
            world.now_ms += 4_000
            live.append(world.database.is_live(1))
            raise refusals[len(live) - 1]("refused")
        await committing(commit)

    world.store.commit = commit  # type: ignore[method-assign]  # a server that refuses
    return live


@pytest.mark.parametrize("refusal", [NoRoom, OutcomeUnknown])
async def test_the_lease_in_the_store_is_renewed_while_its_disk_is_full(
    refusal: type[OutcomeUnknown], world: World
) -> None:
    """The next leader would have no room either. What is refused for another reason may be refused
    to this node alone."""
    live = refuse(world, [refusal] * 5)
    await world.commit()
    # The first attempt of the recovery comes before any renewal.
    assert live[2:] == [refusal is NoRoom] * 3
    assert world.number == 1


async def test_what_is_refused_for_another_reason_once_there_is_room_renews_nothing(
    world: World,
) -> None:
    live = refuse(world, [*[NoRoom] * 3, *[OutcomeUnknown] * 3])
    await world.commit()
    assert live[2:] == [True, True, False, False]


async def test_a_commit_is_ordered_before_it_is_proven_and_told_so_once(world: World) -> None:
    seen: list[tuple[int, int | None, int]] = []
    commits, proving = world.commits, world.store.prove
    commits.on_ordered = lambda: seen.append(
        (world.number, commits.last_unproven, world.store.proven)
    )

    async def prove(number: int) -> None:
        assert seen, "told before the proof is asked for"
        await proving(number)

    world.store.prove = prove  # type: ignore[method-assign]  # looked at
    await world.commit()
    await world.commit(Mishap.REPLY_LOST)
    assert seen == [(1, 1, 0), (2, 2, 1)]
    assert commits.last_unproven is None


async def test_without_a_standby_what_is_ordered_is_proven(world: World) -> None:
    seen: list[int | None] = []
    world.commits.on_ordered = lambda: seen.append(world.commits.last_unproven)
    world.store.has_standby = False
    await world.commit()
    assert seen == [None]


async def test_a_commit_whose_basis_was_taken_back_waits_until_it_is_there_again(
    world: World,
) -> None:
    world.database.start_node(2, 9)
    others = Commit(1, 0, Changes([Chunk(LogKey(KEY.topic_id, 9), 0, 1, b"decision")]))
    assert world.database.commit(2, 9, others)
    world.commits.rest_on(Basis(2, 9, 1))
    world.database.fail_over()
    commit = asyncio.ensure_future(world.commit())
    await asyncio.sleep(0.05)
    assert not commit.done() and world.stored() == []
    assert world.database.commit(2, 9, others)
    await commit
    assert world.stored() == [0]
    await world.commit()
    assert world.stored() == [0, 1]


async def test_a_node_ends_whose_commit_rests_on_what_will_never_be_there(world: World) -> None:
    world.database.start_node(2, 9)
    world.commits.rest_on(Basis(2, 9, 1))
    commit = asyncio.ensure_future(world.commit())
    await asyncio.sleep(0.01)
    world.database.start_node(2, 10)
    with pytest.raises(NodeFenced, match="rests on commit 1 of incarnation 9 of node 2"):
        await commit
    assert world.stored() == []
