"""docs/testing.md lists the compat tests that are about one node, with the reason of each."""

from __future__ import annotations

from compat_tests.conftest import COMPARING
from tools import node_document


def test_the_page_is_as_the_tests_are() -> None:
    page = node_document.PAGE.read_text()
    assert page == node_document.document(page), "run python -m tools.node_document"


def test_every_test_that_is_left_out_has_a_reason() -> None:
    left_out = node_document.one_node_tests()
    assert all(reason for _, _, reason in left_out)
    assert node_document.COMPARED in {reason for _, _, reason in left_out}
    assert node_document.COMPARING == COMPARING
