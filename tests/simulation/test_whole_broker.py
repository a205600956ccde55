"""Histories of the whole broker: none goes wrong, one seed is one history, and they find faults.

Each is told by `tests.simulation.run`, in processes of their own. `MAGNETAR_SOAK` multiplies them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted_faults import FAULTS, UNFOUND
from tests.soak import SOAK

_ROOT = Path(__file__).parents[2]
HISTORIES = 12
AILING_HISTORIES = 6
SECURED_HISTORIES = 2
#: A few faults of each kind in every run; all that are found where there is time.
QUICKLY_FOUND = (
    "durable-not-awaited",
    "waiters-served-early",
    "sequence-not-checked",
    "fence-removed",
    "marker-lost",
    "stable-is-durable",
    "aborted-not-told",
    "pending-acks-forgotten",
    "half-a-login-counts",
)
FOUND = [fault.name for fault in FAULTS if fault.name not in UNFOUND]
SEEDS_OF_A_FAULT = 120


def told(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of the command line."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.timeout(120 * SOAK)
def test_no_history_of_the_whole_broker_goes_wrong() -> None:
    code, said = told("--seeds", f"0-{HISTORIES * SOAK - 1}")
    assert code == 0, said
    assert f"{HISTORIES * SOAK} histories, 0 with witnesses" in said


@pytest.mark.timeout(120 * SOAK)
def test_no_history_of_an_ailing_disk_goes_wrong_in_silence() -> None:
    code, said = told("--ailing", "--seeds", f"0-{AILING_HISTORIES * SOAK - 1}")
    assert code == 0, said
    assert f"{AILING_HISTORIES * SOAK} histories, 0 with witnesses" in said


@pytest.mark.timeout(120 * SOAK)
def test_no_answer_of_a_secured_history_has_data_before_login_and_rights() -> None:
    code, said = told("--secured", "--seeds", f"0-{SECURED_HISTORIES * SOAK - 1}")
    assert code == 0, said
    assert f"{SECURED_HISTORIES * SOAK} histories, 0 with witnesses" in said


def test_a_seed_is_the_same_history_alone_and_behind_another_in_one_process() -> None:
    # Of eight seeds each process tells two: 3 comes after 2.
    alone, behind = (told("--seeds", seeds, "--verbose") for seeds in ("3", "0-7"))
    assert alone[0] == behind[0] == 0, alone[1] + behind[1]
    hashes = [
        said.split("Told(seed=3,")[1].split("trace_hash='")[1].split("'")[0]
        for _, said in (alone, behind)
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FOUND if SOAK > 1 else QUICKLY_FOUND)
def test_a_planted_fault_is_found(name: str) -> None:
    code, said = told("--seeds", f"0-{SEEDS_OF_A_FAULT - 1}", "--plant", name, "--until-found")
    assert code == 1, said
