"""Each story leaves the trace that is written in it, in the default broker and decision first.

A story beside this file is told by the default broker, whose journal makes a decision and its
markers one record. Where a broker without a journal, which decides first, leaves another trace, the
folder `decision_first` has the same story, told by that one.

`MAGNETAR_REWRITE_SCENARIOS=1` writes the traces anew: read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.transactions.commit_plan import Storage
from tests.scenarios.runner import run

STORIES = sorted(Path(__file__).parent.glob("*.story"))
DECISION_FIRST = Path(__file__).parent / "decision_first"
REWRITES = bool(os.environ.get("MAGNETAR_REWRITE_SCENARIOS"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_the_default_broker_leaves_the_trace_that_is_told(story: Path) -> None:
    told = run(story.read_text(), Storage.ALL_OR_NOTHING)
    if REWRITES:
        story.write_text(told)
    assert told == story.read_text()


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_deciding_first_leaves_the_trace_that_is_told(story: Path) -> None:
    other = DECISION_FIRST / story.name
    told = run(story.read_text(), Storage.APART)
    if REWRITES:
        other.unlink(missing_ok=True)
        if told != story.read_text():
            other.write_text(told)
    assert told == (other if other.exists() else story).read_text()


def test_a_story_is_told_twice_only_where_the_traces_differ() -> None:
    for other in DECISION_FIRST.glob("*.story"):
        assert other.read_text() != (DECISION_FIRST.parent / other.name).read_text()
