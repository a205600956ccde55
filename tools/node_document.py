"""The compat tests that are about one node, in docs/testing.md: `python -m tools.node_document`.

Read from the tests themselves: who has the marker `one_node`, and who compares magnetar's answers
with those of Apache Kafka, which has one node (`compat_tests/conftest.py` leaves out both).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.drawn_sections import table, with_sections

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "testing.md"
_TESTS = _ROOT / "compat_tests"
#: The fixtures of tests that compare answers.
COMPARING = frozenset({"both_brokers", "pair"})
COMPARED = "compares answers in detail with an Apache Kafka of one node"


def one_node_tests() -> list[tuple[str, str, str]]:
    """Return file, test and reason of each."""
    return [
        (path.name, each.name, reason)
        for path in sorted(_TESTS.glob("test_*.py"))
        for each, reason in _left_out(ast.parse(path.read_text()))
    ]


def _left_out(module: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    texts = {
        node.targets[0].id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    # Of the file's own fixtures those that take one of them compare too.
    comparing = COMPARING | {each.name for each in functions if COMPARING & _arguments(each)}
    for node in functions:
        if not node.name.startswith("test_"):
            continue
        marked = [each for each in node.decorator_list if _is_marker(each)]
        if marked:
            reason = marked[0].args[0]  # type: ignore[attr-defined]  # a call, as `_is_marker` says
            yield node, str(texts[reason.id] if isinstance(reason, ast.Name) else reason.value)
        elif comparing & _arguments(node):
            yield node, COMPARED


def _arguments(function: ast.FunctionDef) -> set[str]:
    return {each.arg for each in function.args.args}


def _is_marker(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".one_node")


def _drawn() -> str:
    return table(
        ("test", "why it is about one node"),
        [(f"`{file}::{test}`", reason) for file, test, reason in one_node_tests()],
    )


SECTIONS = {"one-node": _drawn}


def document(page: str) -> str:
    """Return the page with its section drawn again."""
    return with_sections(page, SECTIONS, "tools.node_document")


if __name__ == "__main__":
    PAGE.write_text(document(PAGE.read_text()))
