"""Families of metrics that note who reads them, and how many of them are in memory then."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ref

from prometheus_client.core import GaugeMetricFamily, Metric


class Read(NamedTuple):
    """One look at the samples of a family."""

    thread: int
    alive_count: int


class Watch:
    """What is known of the families that `families` has made."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._made: list[ref[Metric]] = []

    def families(self, count: int) -> list[Metric]:
        """Return families of one sample each."""
        made: list[Metric] = []
        for number in range(count):
            family = GaugeMetricFamily(f"lag_{number}", "How far behind.", labels=["topic"])
            family.add_metric(["a"], 1.0)
            family.samples = _Samples(family.samples)
            family.samples.watch = self
            self._made.append(ref(family))
            made.append(family)
        return made

    @property
    def alive_count(self) -> int:
        """How many of the families are in memory."""
        return sum(each() is not None for each in self._made)

    def on_read(self) -> None:
        """Note that a family is read."""
        self.reads.append(Read(get_ident(), self.alive_count))


class _Samples(list[Any]):
    watch: Watch

    def __iter__(self) -> Iterator[Any]:
        self.watch.on_read()
        return super().__iter__()

    def __getitem__(self, which: Any) -> Any:
        self.watch.on_read()
        return super().__getitem__(which)
