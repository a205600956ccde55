"""The table of planted faults in docs/testing.md: `python -m tools.simulation_document`."""

from __future__ import annotations

from tests.simulation.cluster_faults import CLUSTER_FAULTS
from tests.simulation.planted_faults import FAULTS, NODE_FAULTS, UNFOUND


def table() -> str:
    """Return the table: each fault, and where it is planted."""
    lines = ["| fault | what it is | planted in | found |", "|---|---|---|---|"]
    lines += [
        f"| `{fault.name}` | {fault.what} | `{fault.where}` |"
        f" {'no' if fault.name in UNFOUND else 'yes'} |"
        for fault in (*FAULTS, *NODE_FAULTS, *CLUSTER_FAULTS)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
