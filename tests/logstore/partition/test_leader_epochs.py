"""Who wrote what: OffsetForLeaderEpoch's answers."""

from __future__ import annotations

from logstore.partition.leader_epochs import LeaderEpochs


def test_an_epoch_ends_where_the_next_begins() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    assert epochs.end_offset_for(0, 50) == (0, 10)
    assert epochs.end_offset_for(1, 50) == (0, 10)
    assert epochs.end_offset_for(2, 50) == (2, 30)
    assert epochs.end_offset_for(4, 50) == (2, 30)
    assert epochs.end_offset_for(5, 50) == (5, 50)


def test_an_epoch_that_nobody_has_written_in_is_undefined() -> None:
    assert LeaderEpochs([(0, 0)]).end_offset_for(1, 50) == (-1, -1)
    assert LeaderEpochs([(0, 0)]).end_offset_for(-1, 50) == (-1, -1)
    assert LeaderEpochs([(0, 0)]).end_offset_for(-2, 50) == (-2, 0)
    assert LeaderEpochs().end_offset_for(0, 50) == (-1, -1)


def test_an_epoch_before_all_that_is_known_ends_where_that_begins() -> None:
    assert LeaderEpochs([(3, 7), (4, 9)]).end_offset_for(1, 50) == (1, 7)


def test_an_offset_is_of_the_epoch_that_began_before_it() -> None:
    epochs = LeaderEpochs([(1, 3), (2, 10), (5, 30)])
    assert [epochs.epoch_at(offset) for offset in (2, 3, 9, 10, 30, 50)] == [-1, 1, 1, 2, 5, 5]


def test_what_lies_below_the_start_is_forgotten() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    assert epochs.prune(12)
    assert epochs.entries == [(2, 12), (5, 30)]
    assert not epochs.prune(12)
    assert epochs.prune(30)
    assert epochs.entries == [(5, 30)]


def test_what_lies_beyond_the_end_is_forgotten() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 30)])
    epochs.truncate(10)
    assert epochs.entries == [(0, 0)]
