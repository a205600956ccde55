"""Histories of several nodes: none goes wrong, one seed is one history, and they find faults.

As `test_whole_broker`, over two to four nodes whose messages are lost, late, repeated, overtaken.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted_faults import NODE_FAULTS
from tests.simulation.test_whole_broker import told
from tests.soak import SOAK

HISTORIES = 4
#: One fault in every run; all of them where there is time.
QUICKLY_FOUND = ("markers-elsewhere-forgotten",)
SEEDS_OF_A_FAULT = 60


@pytest.mark.timeout(180 * SOAK)
def test_no_history_of_several_nodes_goes_wrong() -> None:
    code, said = told("--nodes", "--seeds", f"0-{HISTORIES * SOAK - 1}")
    assert code == 0, said
    assert f"{HISTORIES * SOAK} histories, 0 with witnesses" in said


def test_a_seed_is_the_same_history_of_nodes_in_every_process() -> None:
    first, second = (told("--nodes", "--seeds", "2", "--verbose") for _ in range(2))
    assert first[0] == second[0] == 0, first[1]
    hashes = [said.split("trace_hash='")[1].split("'")[0] for _, said in (first, second)]
    assert hashes[0] == hashes[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [fault.name for fault in NODE_FAULTS] if SOAK > 1 else QUICKLY_FOUND
)
def test_a_fault_planted_in_nodes_is_found(name: str) -> None:
    seeds = f"0-{SEEDS_OF_A_FAULT - 1}"
    code, said = told("--nodes", "--seeds", seeds, "--plant", name, "--until-found")
    assert code == 1, said
