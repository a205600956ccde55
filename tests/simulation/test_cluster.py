"""Histories of a cluster whose partitions move: none goes wrong, and they find faults.

As `test_nodes`, over one database and, for some, a bucket: take-overs, hand-overs, zombies, commits
of unknown outcome, objects that are named or swept.
"""

from __future__ import annotations

from random import Random
from uuid import uuid4

import pytest

from logstore.remote.commit_store import Commit
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.leaders import Elsewhere
from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.planted_faults import UNFOUND, planted
from tests.simulation.test_whole_broker import told
from tests.simulation.world.process import Scheduler
from tests.simulation.world.shared_storage import SharedStorage
from tests.soak import SOAK

HISTORIES = 2
#: Two faults in every run, and a seed close to one that shows it; all of them where there is time.
QUICKLY_FOUND = {"commit-not-fenced": 5, "object-of-a-move-deleted": 4}
SEEDS_OF_A_FAULT = 40


@pytest.mark.timeout(300 * SOAK)
def test_no_history_of_a_cluster_goes_wrong() -> None:
    code, said = told("--cluster", "--seeds", f"0-{HISTORIES * SOAK - 1}")
    assert code == 0, said
    assert f"{HISTORIES * SOAK} histories, 0 with witnesses" in said


@pytest.mark.timeout(300)
def test_a_seed_is_the_same_history_of_a_cluster_in_every_process() -> None:
    first, second = (told("--cluster", "--seeds", "4", "--verbose") for _ in range(2))
    assert first[0] == second[0] == 0, first[1]
    hashes = [said.split("trace_hash='")[1].split("'")[0] for _, said in (first, second)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("plant", ["", "take-over-not-fenced"])
def test_only_the_row_of_a_node_fences_its_commits(plant: str) -> None:
    """Else a fault that is planted in the catalog's side of the fence is no fault."""
    scheduler = Scheduler(Random(0))
    storage = SharedStorage(scheduler, Random(0))
    catalog = storage.catalog()
    first, second = (catalog.nodes.start(node_id) for node_id in (1, 2))
    one = TopicRow(uuid4(), "a", 1, 1, False, {}, (Elsewhere(1, first),))
    catalog.add_topic(one)
    scheduler.now_s = 10.0
    assert storage.logs.renew(2, second)
    with planted(plant):
        assert catalog.nodes.take_over(1, first) is not None
    (moved,) = catalog.topics()
    assert moved.leaders[0].node_id == 2
    assert storage.logs.commit(1, first, Commit(1, 0)) is (plant != "")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [fault.name for fault in CLUSTER_FAULTS if fault.name not in UNFOUND]
    if SOAK > 1
    else QUICKLY_FOUND,
)
def test_a_fault_planted_in_a_cluster_is_found(name: str) -> None:
    first = QUICKLY_FOUND.get(name, 0)
    seeds = f"{first}-{first + SEEDS_OF_A_FAULT - 1}"
    code, said = told("--cluster", "--seeds", seeds, "--plant", name, "--until-found")
    assert code == 1, said
