"""What a node remembers of transactions whose coordinator is another node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.transactions.metadata import TopicPartition
from coordinator.transactions.remembered_holds import Question, RememberedHolds

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def test_what_the_coordinator_holds_is_remembered_until_the_marker() -> None:
    holds = RememberedHolds()
    holds.answered(holds.ask("id", 1, 0), [A, B])
    assert holds.holds("id", 1, 0, A) and holds.holds("id", 1, 0, B)
    holds.on_marker(1, A)
    assert not holds.holds("id", 1, 0, A) and holds.holds("id", 1, 0, B)
    holds.on_marker(1, B)
    assert not len(holds)


def test_an_answer_about_a_transaction_that_has_ended_meanwhile_holds_nothing() -> None:
    holds = RememberedHolds()
    question = holds.ask("id", 1, 0)
    holds.on_marker(1, A)
    holds.answered(question, [A, B])
    assert not holds.holds("id", 1, 0, A) and holds.holds("id", 1, 0, B)


def test_only_what_was_answered_is_held() -> None:
    holds = RememberedHolds()
    holds.answered(holds.ask("id", 1, 0), [B])
    assert not holds.holds("id", 1, 0, A)
    holds.answered(holds.ask("id", 2, 0))
    assert not holds.holds("id", 2, 0, A) and len(holds) == 1


def test_another_epoch_is_asked_for_again() -> None:
    holds = RememberedHolds()
    holds.answered(holds.ask("id", 1, 4), [A])
    assert not holds.holds("id", 1, 5, A) and not holds.holds("id", 1, 3, A)
    holds.answered(holds.ask("id", 1, 5), [A])
    assert holds.holds("id", 1, 5, A) and not holds.holds("id", 1, 4, A)


def test_a_late_answer_about_an_earlier_epoch_takes_nothing_from_the_later_one() -> None:
    holds = RememberedHolds()
    late = holds.ask("id", 1, 4)
    holds.answered(holds.ask("id", 1, 5), [A])
    holds.answered(late, [A])
    assert holds.holds("id", 1, 5, A) and not holds.holds("id", 1, 4, A)


def test_what_was_told_is_held_until_the_marker_as_an_answer_is() -> None:
    holds = RememberedHolds()
    holds.told("id", 1, 4, {A})
    holds.told("id", 1, 4, {B})
    assert (
        holds.holds("id", 1, 4, A) and holds.holds("id", 1, 4, B) and not holds.holds("id", 1, 5, A)
    )
    holds.told("id", 1, 3, {A})
    assert holds.holds("id", 1, 4, A) and not holds.holds("id", 1, 3, A), "an earlier epoch is over"
    holds.on_marker(1, A)
    assert not holds.holds("id", 1, 4, A) and holds.holds("id", 1, 4, B)
    holds.told("id", 2, 0, set())
    assert len(holds) == 1


def test_a_partition_that_is_gone_is_forgotten_of_all_producers() -> None:
    holds = RememberedHolds()
    holds.answered(holds.ask("id", 1, 0), [A, B])
    holds.answered(holds.ask("id", 2, 0), [A])
    holds.told("id", 1, 1, {B})
    holds.answered(holds.ask("id", 3, 0), [A, B])
    holds.forget_partition(A)
    assert holds.holds("id", 1, 1, B) and holds.holds("id", 3, 0, B) and len(holds) == 2
    assert not holds.holds("id", 3, 0, A) and not holds.holds("id", 2, 0, A)
    holds.forget_partition(B)
    assert len(holds) == 0


@given(st.lists(st.tuples(st.sampled_from("aqm"), st.integers(0, 1), st.sampled_from([A, B]))))
def test_nothing_is_held_that_got_a_marker_since_it_was_asked_for(
    steps: list[tuple[str, int, TopicPartition]],
) -> None:
    holds, open_questions = RememberedHolds(), list[tuple[Question, int, int, TopicPartition]]()
    last_marker: dict[tuple[int, TopicPartition], int] = {}
    asked_for: dict[tuple[int, TopicPartition], int] = {}
    for now, (step, producer_id, partition) in enumerate(steps):
        if step == "q":
            open_questions.append((holds.ask("id", producer_id, 0), now, producer_id, partition))
        elif step == "m":
            holds.on_marker(producer_id, partition)
            last_marker[producer_id, partition] = now
        elif open_questions:
            question, began, its_producer, its_partition = open_questions.pop(0)
            holds.answered(question, [its_partition])
            key = its_producer, its_partition
            asked_for[key] = max(began, asked_for.get(key, -1))
        for key in [(one, each) for one in (0, 1) for each in (A, B)]:
            is_valid = asked_for.get(key, -1) > last_marker.get(key, -1)
            assert holds.holds("id", key[0], 0, key[1]) == is_valid
