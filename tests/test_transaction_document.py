"""docs/transactions.md tells what the rules decide, and the rules take what their table allows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from coordinator.transactions.metadata import PREDECESSORS, State
from tools.transaction_document import PAGE, SECTIONS, document, edges


def test_the_page_is_as_the_rules_are() -> None:
    page = PAGE.read_text()
    assert page == document(page), "run python -m tools.transaction_document"


def test_every_transition_that_is_allowed_is_taken_by_some_rule_and_no_other() -> None:
    taken = {(before, after) for before, after in edges() if before is not None}
    allowed = {(before, after) for after, befores in PREDECESSORS.items() for before in befores}
    elsewhere = {State.PREPARE_EPOCH_FENCE, State.VOTED}  # never entered; of children alone
    assert taken == {edge for edge in allowed if elsewhere.isdisjoint(edge)}
    assert {after for before, after in edges() if before is None} == {State.EMPTY}


def test_a_page_without_a_place_for_a_section_is_refused() -> None:
    name = next(iter(SECTIONS))
    with pytest.raises(ValueError, match=name):
        document("")


def test_every_difference_from_kafka_is_shown_by_a_test_that_exists() -> None:
    root = PAGE.parent.parent
    section = PAGE.read_text().split("## Where this differs")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        shown = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row)
        assert shown, row
        for name, test in shown:
            path = root / (name if "/" in name else f"compat_tests/{name}")
            assert test in functions_in(path), f"{name}::{test} does not exist"


def functions_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
