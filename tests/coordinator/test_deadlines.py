"""No deadline is missed, however often a key's moves; each key is kept about once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.deadlines import Deadlines


def test_keys_come_up_when_due_in_order_and_once() -> None:
    deadlines = Deadlines()
    deadlines.schedule("late", 300)
    deadlines.schedule("early", 100)
    assert deadlines.next_ms() == 100
    assert deadlines.take_due(99) == []
    assert deadlines.take_due(300) == ["early", "late"]
    assert deadlines.next_ms() is None


def test_a_deadline_may_move_earlier() -> None:
    deadlines = Deadlines()
    deadlines.schedule("key", 300)
    deadlines.schedule("key", 100)
    assert deadlines.take_due(100) == ["key"]
    assert deadlines.take_due(300) == []


def test_moving_later_again_and_again_keeps_one_entry() -> None:
    deadlines = Deadlines()
    for due_ms in range(1000):
        deadlines.schedule("key", due_ms)
    assert deadlines.take_due(0) == ["key"]
    assert deadlines.next_ms() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=30))
def test_a_key_comes_up_no_later_than_its_earliest_deadline(plan: list[tuple[str, int]]) -> None:
    deadlines = Deadlines()
    earliest: dict[str, int] = {}
    for key, due_ms in plan:
        deadlines.schedule(key, due_ms)
        earliest[key] = min(due_ms, earliest.get(key, due_ms))
    for now_ms in range(21):
        due = {key for key, due_ms in earliest.items() if due_ms == now_ms}
        assert set(deadlines.take_due(now_ms)) == due
