"""Families of samples as prometheus-client takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from magnetar.metrics.families import COUNTER, FAMILIES, Family

LabelledFamily: TypeAlias = CounterMetricFamily | GaugeMetricFamily
Samples = Iterable[tuple[tuple[str, ...], float]]


def plain(name: str, value: float) -> LabelledFamily:
    """Return a family of ours that has no labels."""
    return labelled(name, [((), value)])


def labelled(
    name: str, samples: Samples, families: Mapping[str, Family] = FAMILIES
) -> LabelledFamily:
    """Return the family `name` with these samples: the values of its labels, and the number."""
    family = families[name]
    of_kind = CounterMetricFamily if family.kind is COUNTER else GaugeMetricFamily
    metric = of_kind(name, family.help, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric
