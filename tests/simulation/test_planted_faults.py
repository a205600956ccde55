"""The places of planted faults: each is in the product, and docs/testing.md names it."""

from __future__ import annotations

import pytest

from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.fault import Fault
from tests.simulation.planted_faults import FAULTS, NODE_FAULTS, place_of
from tools import node_document, simulation_document


@pytest.mark.parametrize(
    "fault", (*FAULTS, *NODE_FAULTS, *CLUSTER_FAULTS), ids=lambda fault: fault.name
)
def test_the_product_has_the_function_in_whose_place_a_fault_is_planted(fault: Fault) -> None:
    """Most faults are planted only where a run has hours: it would find this out too late."""
    holder, name = place_of(fault)
    assert callable(getattr(holder, name))


def test_the_page_is_as_the_faults_are() -> None:
    page = node_document.PAGE.read_text()
    assert page == simulation_document.document(page), "run python -m tools.simulation_document"
