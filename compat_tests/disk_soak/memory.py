"""The broker's memory over the run: of each of its lives, what it had last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

#: Of the run: when the memory is compared with that of the end, and how long a while is.
_GROWN_SHARE_MAX = 0.2
_FIRST_AT_S, _WHILE_S = 300.0, 120.0


class Sample(NamedTuple):
    at_s: float
    pid: int
    resident_kb: int


class Memory:
    """Samples of the resident memory of one process after the other."""

    def __init__(self) -> None:
        self._last: dict[int, Sample] = {}

    def sample(self, at_s: float, pid: int) -> None:
        """Look at the process, if it is there."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                self.add([Sample(at_s, pid, int(line.split()[1]))])

    def add(self, samples: Iterable[Sample]) -> None:
        """Take samples, in the order of time."""
        for sample in samples:
            self._last[sample.pid] = sample

    def judge(self, duration_s: float) -> tuple[list[str], str]:
        """Return the fault, if the memory has grown too much, and what it was.

        Compares the broker's lives around minute five, or a third of a shorter run, with the last.
        """
        first_at_s = min(_FIRST_AT_S, duration_s / 3)
        while_s = min(_WHILE_S, duration_s / 6)
        first = self._around(first_at_s - while_s / 2, first_at_s + while_s / 2)
        last = self._around(duration_s - while_s, duration_s)
        if first is None or last is None:
            return ["the broker's memory was not seen"], "memory unknown"
        told = (
            f"resident {first / 1024:.0f} MB after {first_at_s / 60:.1f} minutes,"
            f" {last / 1024:.0f} MB at the end"
        )
        if last > first * (1 + _GROWN_SHARE_MAX):
            return [f"the broker's memory has grown: {told}"], told
        return [], told

    def _around(self, since_s: float, until_s: float) -> float | None:
        found = [each.resident_kb for each in self._last.values() if since_s <= each.at_s < until_s]
        return median(found) if found else None
