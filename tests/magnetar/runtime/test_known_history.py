"""What a node is sure of, and what it remembers for its next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.remote.commit_store import CommitsLost
from magnetar.runtime.known_history import FILE, KnownHistory
from magnetar.storage.history import ClusterHalted, History

EARLY = History("cluster", 0, 3, 10, 2000, {1: (2, 40), 2: (3, 7)})
LATE = EARLY._replace(commits={1: (2, 45), 2: (3, 9)})


def no() -> bool:
    return False


def yes() -> bool:
    return True


def test_what_is_not_proven_may_be_taken_back(tmp_path: Path) -> None:
    known = KnownHistory(tmp_path)
    known.see(LATE, no)
    # A fail-over to a synchronous standby: the primary had shown what it did not acknowledge.
    known.see(EARLY, no)
    known.keep()
    assert not (tmp_path / FILE).exists()


def test_what_is_proven_may_not_be_taken_back(tmp_path: Path) -> None:
    known = KnownHistory(tmp_path)
    known.see(LATE, yes)
    known.see(LATE, no)
    with pytest.raises(CommitsLost, match="commit 40 is the last one of node 1, but 45 was there"):
        known.see(EARLY, no)


def test_the_next_start_knows_what_was_sure(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "later"
    first = KnownHistory(directory)
    first.see(LATE, yes)
    first.see(LATE, no)
    first.keep()
    second = KnownHistory(directory)
    second.check(LATE)
    with pytest.raises(CommitsLost, match="commit 40 is the last one of node 1"):
        second.check(EARLY)
    # Another cluster's database says nothing about this one's, nor one whose loss was accepted.
    second.check(EARLY._replace(cluster_id="other"))
    second.check(EARLY._replace(repairs=1))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"commits": {"x": 1}}', '{"commits": {}}'])
def test_a_damaged_hint_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    KnownHistory(tmp_path).check(EARLY)


def test_a_hint_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    known = KnownHistory(tmp_path / "file")
    known.see(LATE, yes)
    known.see(LATE, no)
    known.keep()
    known.see(LATE, no)


def test_a_halted_cluster_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ClusterHalted, match=r"a week(.|\n)*--accept-loss"):
        KnownHistory(tmp_path).see(EARLY._replace(loss="a week"), no)


def test_what_was_seen_before_a_fail_over_is_never_sure(tmp_path: Path) -> None:
    known = KnownHistory(tmp_path)
    known.see(LATE, lambda: None)
    known.see(EARLY, yes)
    known.see(EARLY, yes)
    known.check(EARLY)
    assert not (tmp_path / FILE).exists()
    known.keep()
    assert (tmp_path / FILE).exists(), "what was seen after it is"
