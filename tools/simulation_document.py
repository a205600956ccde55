"""The table of planted faults in docs/testing.md: `python -m tools.simulation_document`."""

from __future__ import annotations

from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.planted_faults import FAULTS, NODE_FAULTS, UNFOUND


def table() -> str:
    """Return the table: each fault, and where it is planted."""
    lines = ["| fault | what it is | planted in | found |", "|---|---|---|---|"]
    lines += [
        f"| `{fault.name}` | {fault.what} | `{fault.where}` | {_found(fault.name)} |"
        for fault in (*FAULTS, *NODE_FAULTS, *CLUSTER_FAULTS)
    ]
    return "\n".join(lines) + "\n"


def _found(name: str) -> str:
    """Return whether a fault is found; for one that is not, what histories lack."""
    return f"no: {UNFOUND[name]}" if name in UNFOUND else "yes"


if __name__ == "__main__":
    print(table(), end="")
