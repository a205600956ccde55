"""Joint transactions through the real coordinators and logs, with power lost at any step.

Fleets of a parent and up to three children a round, two of the parents rivals of one name, over
four partitions and two shards: what a round wrote is there as a whole or not at all, with its
offset, and nothing hangs once votes and timeouts have expired.
"""

from __future__ import annotations

from random import Random

import pytest

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions import commit_plan, joint
from coordinator.transactions.metadata import TransactionMetadata
from logstore.disk.durability import Durability
from magnetar.runtime import participants
from tests.simulation.families import Parent
from tests.simulation.history import History, Outcome
from tests.simulation.simulated_broker import World
from tests.simulation.telling import SEEDS, Broken, run
from tests.simulation.workers import Luck
from tests.soak import SOAK

NAMES = ("p-1", "p-2", "p-1~>fleet.0", "p-1~>fleet.1", "p-2~>fleet.0")
PARTS = 2
HISTORIES_OF_A_PART = 8


def parents_of(world: World, history: History, random: Random) -> list[Parent]:
    """Three parents of two names, each of either transaction version."""
    luck = random.choice((Luck(), Luck(0, 0, 0, 0, 0.1), Luck(0.1, 0.05, 0.05, 0.05, 0.2)))
    return [
        Parent(
            world,
            history,
            Random(random.getrandbits(32)),
            name,
            transactional_id,
            OffsetKey(f"group-{number}", "in", number),
            random.random() < 0.5,
            luck,
        )
        for name, transactional_id, number in (
            ("one", "p-1", 0),
            ("two", "p-2", 1),
            ("rival", "p-2", 1),
        )
    ]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(60 * 60)
def test_no_crash_tears_a_joint_transaction(part: int) -> None:
    committed = 0
    count = HISTORIES_OF_A_PART * SOAK
    for seed in SEEDS[part * count : (part + 1) * count]:
        _, history = run(seed, parents_of, NAMES)
        committed += sum(
            one.outcome is Outcome.COMMITTED and len(one.values) > 1 for one in history.transactions
        )
    assert committed > count


@pytest.mark.timeout(60 * 60)
def test_no_crash_tears_a_family_that_is_marked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit_plan, participants):
        monkeypatch.setattr(module, "MARKERS_AT_ONCE_MAX", 2)
    for seed in SEEDS[: HISTORIES_OF_A_PART * SOAK]:
        run(seed, parents_of, NAMES)


def test_without_syncs_joint_transactions_survive_the_end_of_the_process() -> None:
    for seed in SEEDS[: 2 * SOAK]:
        run(seed, parents_of, NAMES, Durability.PAGE_CACHE)


def _never_sealed(_: TransactionMetadata | None) -> bool:
    return False


def _no_votes(_: object) -> tuple[()]:
    return ()


#: A rule broken on purpose, and what the checker must find for it.
FLAWS = {
    "a decision names no vote": ("_votes", _no_votes, "lost|torn|hanging"),
    "nothing is sealed": ("is_sealed", _never_sealed, "lost|torn|dirty|hanging|refused|vote"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_checker_finds(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken, found = FLAWS[flaw]
    monkeypatch.setattr(joint, name, broken)
    with pytest.raises(Broken, match=found):
        for seed in SEEDS[270:1270]:  # one of forty shows it, and of these the seventh is the first
            run(seed, parents_of, NAMES)
