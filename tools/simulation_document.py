"""Draw the table of planted faults in docs/testing.md: `python -m tools.simulation_document`."""

from __future__ import annotations

from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.planted_faults import FAULTS, NODE_FAULTS, UNFOUND
from tools.drawn_sections import table, with_sections
from tools.node_document import PAGE


def _drawn() -> str:
    """Return the table: each fault, where it is planted, and whether it is found."""
    return table(
        ("fault", "what it is", "planted in", "found"),
        [
            (f"`{fault.name}`", fault.what, f"`{fault.where}`", _found(fault.name))
            for fault in (*FAULTS, *NODE_FAULTS, *CLUSTER_FAULTS)
        ],
    )


def _found(name: str) -> str:
    """Return whether a fault is found; for one that is not, what histories lack."""
    return f"no: {UNFOUND[name]}" if name in UNFOUND else "yes"


def document(page: str) -> str:
    """Return the page with its table drawn again."""
    return with_sections(page, {"planted faults": _drawn}, "tools.simulation_document")


if __name__ == "__main__":
    PAGE.write_text(document(PAGE.read_text()))
