"""docs/joint_transactions.md tells what the rules decide, and they take every step of a vote."""

from __future__ import annotations

from coordinator.transactions.metadata import PREDECESSORS, State
from tools.joint_transaction_document import PAGE, document, edges


def test_the_page_of_joint_transactions_is_as_the_rules_are() -> None:
    page = PAGE.read_text()
    assert page == document(page), "run python -m tools.joint_transaction_document"


def test_every_way_into_and_out_of_a_vote_is_taken_by_some_rule() -> None:
    taken = set(edges())
    into = {(before, State.VOTED) for before in PREDECESSORS[State.VOTED]}
    out = {(State.VOTED, after) for after, before in PREDECESSORS.items() if State.VOTED in before}
    assert into | out <= taken
