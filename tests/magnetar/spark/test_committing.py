"""The driver's commit: what Spark counts as written is visible once, and nothing else ever."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.spark.errors import OtherQuery, SinkError, VotesDiffer
from magnetar.spark.progress import (
    Progress,
    decode_record,
    encode_metadata,
    is_written,
    repetition,
)
from tests.magnetar.spark_world import (
    QUERY,
    ChildState,
    Coordinator,
    Died,
    FakeParent,
    Fate,
    commit,
    progress,
)
from tests.soak import SOAK

TASKS = 2
BATCHES = 4
STEPS_MAX = 12


def voted(coordinator: Coordinator, *children: str) -> set[str]:
    for child in children:
        assert coordinator.begin(child) and coordinator.vote(child)
    return set(children)


def test_the_votes_of_a_batch_become_visible_together_with_its_record() -> None:
    coordinator = Coordinator()
    children = voted(coordinator, "a", "b")
    parent = FakeParent(coordinator)
    assert commit(parent, progress(0), children)
    assert coordinator.visible == ["a", "b"]
    assert coordinator.recorded == progress(0)
    assert parent.steps == [
        "recorded",
        "initialise",
        "recorded",
        "undecided",
        "record",
        "votes",
        "commit",
    ]


def test_a_batch_that_was_written_before_is_not_written_again() -> None:
    coordinator = Coordinator()
    assert commit(FakeParent(coordinator), progress(0), voted(coordinator, "a"))
    assert not commit(FakeParent(coordinator), progress(0, run="2"), voted(coordinator, "b"))
    assert coordinator.visible == ["a"]
    assert coordinator.children["b"] is ChildState.ABORTED


def test_losers_of_speculation_are_fenced() -> None:
    coordinator = Coordinator()
    children = voted(coordinator, "winner")
    voted(coordinator, "loser")
    coordinator.begin("slow loser")
    assert commit(FakeParent(coordinator), progress(0), children)
    assert coordinator.visible == ["winner"]
    assert not coordinator.vote("slow loser")


def test_an_empty_batch_is_recorded() -> None:
    coordinator = Coordinator()
    assert commit(FakeParent(coordinator), progress(3), set())
    assert coordinator.recorded == progress(3)


def test_a_vote_that_expired_fails_the_batch() -> None:
    coordinator = Coordinator()
    children = voted(coordinator, "a")
    coordinator.expire_votes()
    children |= voted(coordinator, "b")
    with pytest.raises(VotesDiffer, match=r"a did not vote.*joint\.vote\.timeout\.ms"):
        commit(FakeParent(coordinator), progress(0), children)
    assert coordinator.visible == []
    assert not coordinator.is_sealed


def test_a_vote_at_the_last_moment_fails_the_batch() -> None:
    coordinator = Coordinator()
    children = voted(coordinator, "a")

    def late(step: str) -> Fate:
        if step == "record":
            voted(coordinator, "late")
        return Fate.GOES_ON

    with pytest.raises(VotesDiffer, match="late voted at the last moment"):
        commit(FakeParent(coordinator, late), progress(0), children)
    assert coordinator.visible == []
    assert coordinator.recorded is None


def test_a_second_query_is_refused_and_disturbs_nobody() -> None:
    coordinator = Coordinator()
    assert commit(FakeParent(coordinator), progress(5, "spark-A"), voted(coordinator, "a"))
    epoch = coordinator.epoch
    children = voted(coordinator, "b")
    with pytest.raises(OtherQuery, match=r"spark-A.*batch 5.*spark-B.*batch 0"):
        commit(FakeParent(coordinator), progress(0, "spark-B"), children)
    assert coordinator.epoch == epoch
    assert coordinator.visible == ["a"]


def test_of_two_queries_that_begin_at_once_one_is_refused() -> None:
    """The first finds no record yet when it looks for the first time."""
    coordinator = Coordinator()
    first, second = voted(coordinator, "a"), voted(coordinator, "b")

    def overtaken(step: str) -> Fate:
        if step == "initialise":
            assert commit(FakeParent(coordinator), progress(0, "spark-B"), second)
        return Fate.GOES_ON

    with pytest.raises(OtherQuery, match=r"spark-B.*spark-A"):
        commit(FakeParent(coordinator, overtaken), progress(0, "spark-A"), first)
    assert coordinator.visible == ["b"]


@pytest.mark.parametrize("step", ["record", "votes", "commit"])
def test_a_driver_that_was_replaced_decides_nothing(step: str) -> None:
    coordinator = Coordinator()
    old = voted(coordinator, "old")
    replacements: list[set[str]] = []

    def replaced(now: str) -> Fate:
        if now == step and not replacements:
            # The new run's tasks can begin when the seal of the old driver is broken.
            FakeParent(coordinator).initialise()
            replacements.append(voted(coordinator, "new"))
            assert commit(FakeParent(coordinator), progress(0, run="2"), replacements[0])
        return Fate.GOES_ON

    with pytest.raises(SinkError):
        commit(FakeParent(coordinator, replaced), progress(0), old)
    assert coordinator.visible == ["new"]
    assert not coordinator.is_sealed


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    with pytest.raises(OtherQuery, match="batch 3 .* after batch 4"):
        is_written(progress(4), progress(3), QUERY, stream=True)


def test_a_checkpoint_that_was_set_back_by_one_batch_is_refused_if_the_batch_has_grown() -> None:
    written, grown = replace(progress(4), rows=10), replace(progress(4, run="2"), rows=12)
    assert is_written(written, replace(grown, rows=10), QUERY, stream=True)
    for stream in (True, False):
        with pytest.raises(OtherQuery, match=r"batch 4 .* 10 rows, now it has 12: .*commits/4"):
            is_written(written, grown, QUERY, stream=stream)


def test_a_batch_job_that_is_repeated_is_done_once_and_says_so() -> None:
    written = replace(progress(4, None), rows=10)
    assert is_written(written, written, QUERY, stream=False)
    assert "batch 4 of queryId 'orders' was written before, with 10" in repetition(written, QUERY)


def test_another_batch_job_under_the_same_name_is_not_taken_for_a_repetition() -> None:
    """Its rows would be lost in silence."""
    written = replace(progress(4, None), rows=10)
    with pytest.raises(OtherQuery, match=r"batch 4 .* 10 rows, now it has 12: .*another job"):
        is_written(written, replace(written, rows=12), QUERY, stream=False)


def test_two_writes_of_one_batch_to_two_topics_are_not_taken_for_one() -> None:
    orders, audit = replace(progress(1), topic="orders"), replace(progress(1), topic="audit")
    assert is_written(orders, orders, QUERY, stream=False)
    with pytest.raises(OtherQuery, match="two queryIds"):
        is_written(orders, audit, QUERY, stream=False)


def test_a_batch_job_and_a_stream_do_not_share_a_query_id() -> None:
    with pytest.raises(OtherQuery, match=r"a batch job.*Spark query spark-1"):
        is_written(progress(1, None), progress(2), QUERY, stream=True)


@given(
    st.builds(
        Progress,
        st.integers(0, 2**63 - 1),
        *[st.none() | st.text()] * 3,
        st.integers(0),
    )
)
def test_a_record_is_read_as_it_was_written(written: Progress) -> None:
    assert decode_record(written.batch_id, encode_metadata(written), QUERY) == written


@pytest.mark.parametrize(
    "metadata", ["", "x", "[]", "{}", '{"version":2}', '{"version":1}', '{"version":1,"a":1}']
)
def test_a_record_of_something_else_is_named(metadata: str) -> None:
    with pytest.raises(SinkError, match=r"magnetar\.spark\.orders"):
        decode_record(1, metadata, QUERY)


class History:
    """A query that is run until all its batches are written, while things go wrong."""

    def __init__(self, draw: st.DataObject) -> None:
        self.coordinator = Coordinator()
        self.acknowledged: list[int] = []
        self._draw = draw
        self._runs = 0
        self._disturbances = 6
        self._zombie: tuple[Progress, set[str]] | None = None

    def run(self) -> None:
        while len(self.acknowledged) < BATCHES:
            self._runs += 1
            try:
                while len(self.acknowledged) < BATCHES:
                    self._batch(len(self.acknowledged))
                    self.check()
            except (Died, SinkError):
                self.check()

    def check(self) -> None:
        """Every batch is visible whole and once, or not at all; never out of order."""
        batches = [int(child.split(".")[0]) for child in self.coordinator.visible]
        whole = [batch for batch in range(BATCHES) for _ in range(TASKS)]
        assert batches == whole[: len(batches)]
        assert len(batches) % TASKS == 0
        assert len(batches) >= TASKS * len(self.acknowledged)

    def _batch(self, number: int) -> None:
        if self.coordinator.is_sealed:
            FakeParent(self.coordinator).initialise()  # as the planning of a batch does
        batch = progress(number, run=str(self._runs))
        children = {self._task(number, task) for task in range(TASKS)}
        zombie, self._zombie = self._zombie, (batch, children)
        commit(FakeParent(self.coordinator, lambda step: self._fate(zombie)), batch, children)
        self.acknowledged.append(number)

    def _task(self, batch: int, task: int) -> str:
        """Return the attempt whose message reaches the driver; others may have voted, or not."""
        attempts = 1 + (self._disturbed() and self._draw.draw(st.integers(0, 2)))
        for attempt in range(attempts):
            child = f"{batch}.{task}.{self._runs}.{attempt}"
            assert self.coordinator.begin(child)
            if attempt == attempts - 1 or self._draw.draw(st.booleans()):
                assert self.coordinator.vote(child)
        return child

    def _fate(self, zombie: tuple[Progress, set[str]] | None) -> Fate:
        if not self._disturbed():
            return Fate.GOES_ON
        what = self._draw.draw(st.sampled_from([*Fate, "zombie", "expiry", "late vote"]))
        if isinstance(what, Fate):
            return what
        if what == "zombie" and zombie is not None:
            with suppress(SinkError):
                commit(FakeParent(self.coordinator), *zombie)
        elif what == "expiry":
            self.coordinator.expire_votes()
        else:
            for child, state in list(self.coordinator.children.items()):
                if state is ChildState.ONGOING:
                    self.coordinator.vote(child)
        return Fate.GOES_ON

    def _disturbed(self) -> bool:
        if self._disturbances and self._draw.draw(st.integers(0, 3)) == 0:
            self._disturbances -= 1
            return True
        return False


@settings(max_examples=200 * SOAK, deadline=None)
@given(st.data())
def test_whatever_dies_every_batch_is_visible_once_and_whole(data: st.DataObject) -> None:
    history = History(data)
    history.run()
    assert len(history.coordinator.visible) == BATCHES * TASKS
