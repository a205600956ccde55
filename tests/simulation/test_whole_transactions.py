"""Whole transactions through the real coordinators and logs, with power lost at any step.

Each history: workers of several transactional ids (two of them share one and fence each other)
read, process and write over four partitions, two shards of each coordinator and two groups, while
the broker loses power, or is killed, in mid-write, mid-sync, mid-recovery. Afterwards nothing may
be lost, torn, dirty or duplicated, no offset may be off its transaction, and nothing may hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

import logstore.directory.log_directory
from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions import commit_plan
from coordinator.transactions.commit_plan import MarkerWork, Plan
from logstore.directory.journal_replay import Replayed
from logstore.disk.durability import Durability
from logstore.partition.log import PartitionLog
from magnetar.apis import txn_offset_commit
from magnetar.runtime import participants
from magnetar.runtime.commit import Commits
from magnetar.storage.topic_names import INTERNAL
from tests.simulation.history import History, Outcome
from tests.simulation.simulated_broker import World
from tests.simulation.telling import SEEDS, Broken, run
from tests.simulation.workers import Luck, Worker
from tests.soak import SOAK
from wire.message import Message

NAMES = ("tx-1", "tx-2", "tx-3")
PARTS = 4
HISTORIES_OF_A_PART = 25


def workers_of(world: World, history: History, random: Random) -> list[Worker]:
    """Four workers, of three transactional ids, in two groups; both protocol generations."""
    luck = random.choice((Luck(), Luck(0, 0, 0, 0, 0.1), Luck(0.2, 0.15, 0.1, 0.1, 0.3)))
    workers = []
    for name, transactional_id, input_partition in (
        ("one", "tx-1", 0),
        ("two", "tx-2", 1),
        ("three", "tx-3", 2),
        ("rival", "tx-3", 2),
    ):
        key = OffsetKey(f"group-{input_partition % 2}", "in", input_partition)
        is_v2 = serves_v2(world) and random.random() < 0.5
        workers.append(
            Worker(
                world,
                history,
                Random(random.getrandbits(32)),
                name,
                transactional_id,
                key,
                is_v2,
                luck,
            )
        )
    return workers


def serves_v2(world: World) -> bool:
    """Whether the broker speaks transaction version 2 (KIP-890): EndTxn v5."""
    return world.apis[26].max_version >= 5


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(60 * 60)
def test_no_crash_loses_tears_dirties_duplicates_or_hangs(part: int) -> None:
    committed = 0
    count = HISTORIES_OF_A_PART * SOAK
    for seed in SEEDS[part * count : (part + 1) * count]:
        _, history = run(seed, workers_of, NAMES)
        committed += sum(one.outcome is Outcome.COMMITTED for one in history.transactions)
    assert committed > count


@pytest.mark.timeout(60 * 60)
def test_no_crash_tears_what_is_marked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit_plan, participants):
        monkeypatch.setattr(module, "MARKERS_AT_ONCE_MAX", 1)
    committed = 0
    for seed in SEEDS[: HISTORIES_OF_A_PART * SOAK]:
        _, history = run(seed, workers_of, NAMES)
        committed += sum(one.outcome is Outcome.COMMITTED for one in history.transactions)
    assert committed > HISTORIES_OF_A_PART * SOAK


def test_without_syncs_it_holds_for_the_end_of_the_process() -> None:
    for seed in SEEDS[: 10 * SOAK]:
        run(seed, workers_of, NAMES, Durability.PAGE_CACHE)


async def _nothing(*_args: object, **_options: object) -> None:
    """Instead of waiting."""


_durable = PartitionLog.durable


async def _durable_of_data_alone(log: PartitionLog, end_offset: int) -> None:
    """Wait for the disk, but not for what the coordinators have logged."""
    if log.topic not in INTERNAL:
        await _durable(log, end_offset)


def _at_once(response: Message, *_: object) -> Message:
    """Answer a commit of offsets without waiting."""
    return response


_OFFSETS = (txn_offset_commit, "when_durable", _at_once)
_begin = Commits.begin


def _begin_no_redrive(
    commits: Commits, works: Sequence[MarkerWork], plan: Plan, *logged: Any
) -> None:
    """Do what a decision calls for, but not what a restart finds due."""
    if plan is not Plan.REDRIVE:
        _begin(commits, works, plan, *logged)


#: A rule broken on purpose, by patches, and what the checker must find for it.
FLAWS: dict[str, tuple[list[tuple[Any, str, Any]], str]] = {
    "answers do not wait for the disk": (
        [(PartitionLog, "durable", _nothing), _OFFSETS],
        "lost|refused",
    ),
    "decisions do not wait for the disk": (
        [(PartitionLog, "durable", _durable_of_data_alone), _OFFSETS],
        "torn|dirty|lost|refused",
    ),
    "a restart forgets the journal": (
        [(logstore.directory.log_directory, "replay_journal", lambda *_, **__: Replayed())],
        "lost|torn|refused",
    ),
    "a restart forgets the work due": (
        [(Commits, "begin", _begin_no_redrive)],
        "hanging|refused",
    ),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_checker_finds(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patches, found = FLAWS[flaw]
    for owner, name, broken in patches:
        monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken, match=found):
        for seed in SEEDS[:100]:
            run(seed, workers_of, NAMES)
