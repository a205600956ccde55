"""Histories of the whole broker, in processes of their own: clean ones, equal ones, faulty ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.soak import SOAK

#: Planted faults, and the last seed that finds them, counted from 0. `docs/testing.md` has all.
FOUND_BY = {
    "sync-skipped": 0,
    "durable-not-awaited": 0,
    "sequence-not-checked": 0,
    "epoch-not-checked": 0,
    "fence-removed": 0,
    "marker-lost": 0,
    "abort-commits": 0,
    "stable-is-durable": 0,
    "aborted-not-told": 0,
    "pending-acks-kept": 0,
    "start-not-persisted": 1,
    "retention-too-early": 0,
    "answers-swapped": 0,
}


def tell(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_histories_of_the_whole_broker_have_no_witness() -> None:
    told = tell("--seeds", f"0-{6 * SOAK}")
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_seed_is_the_same_history_alone_and_among_others() -> None:
    together, alone = tell("--seeds", "1-3", "--verbose"), tell("--seeds", "3", "--verbose")
    assert alone.stdout.splitlines()[0] == together.stdout.splitlines()[2]


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_fault_is_found(name: str) -> None:
    told = tell("--seeds", f"0-{FOUND_BY[name] + 3 * SOAK}", "--plant", name, "--until-found")
    assert told.returncode == 1, told.stdout + told.stderr
