"""The dashboard, the alert rules and the run book speak of metrics that the broker tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar.metrics import exporter_names
from magnetar.metrics.families import COUNTER, FAMILIES, HISTOGRAM
from tools.dashboard import dashboard

PLACE = Path(__file__).resolve().parents[3] / "docs" / "observability"
RULES = yaml.safe_load((PLACE / "alerts.yml").read_text())["groups"][0]["rules"]
RUN_BOOK = (PLACE / "runbook.md").read_text()
KNOWN = {**FAMILIES, **exporter_names.FAMILIES}
#: Prometheus' own, and prometheus-client's.
OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
#: Labels that Prometheus adds to every series, and the bounds of a histogram.
ADDED = {"instance", "job", "le"}
_METRIC = re.compile(r"\b(?:magnetar|kafka|process)_\w+|\bup\b")
_BY = re.compile(r"\bby \(([^)]*)\)")
_LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}")


def metrics_of(query: str) -> set[str]:
    return set(_METRIC.findall(re.sub(r"\{[^}]*\}", "", query)))


def labels_of(query: str) -> set[str]:
    """Return the labels that the metrics of a query have."""
    found = set(ADDED)
    for metric in metrics_of(query) - OTHERS:
        found |= set(KNOWN[family_of(metric)].labels)
    return found


def family_of(metric: str) -> str:
    base = metric.removesuffix("_bucket")
    is_histogram = base in KNOWN and KNOWN[base].kind is HISTOGRAM
    return base if is_histogram else metric


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query with the text that names its labels."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]
    for rule in RULES:
        yield rule["expr"], rule["annotations"]["summary"]


def test_the_dashboard_is_what_the_tool_writes() -> None:
    written = json.loads((PLACE / "dashboard.json").read_text())
    assert written == dashboard(), "run python -m tools.dashboard"


@pytest.mark.parametrize(("query", "text"), list(queries()))
def test_a_query_asks_for_what_is_told(query: str, text: str) -> None:
    metrics = metrics_of(query)
    assert metrics
    assert {family_of(metric) for metric in metrics} <= KNOWN.keys() | OTHERS
    grouped = {label.strip() for found in _BY.findall(query) for label in found.split(",")}
    assert grouped <= labels_of(query)
    # What a query groups by is all that is left to name.
    assert set(_LEGEND.findall(text)) <= (grouped or labels_of(query))
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_and_a_section_of_the_run_book(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["runbook_url"] == f"runbook.md#{name.lower()}"
    _, _, section = RUN_BOOK.partition(f"## {name}\n")
    section = section.partition("\n## ")[0]
    for part in ("**Means:**", "**Look:**", "**Do:**"):
        assert part in section, f"the section {name} lacks {part}"


def test_the_run_book_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", RUN_BOOK, re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]


def test_all_of_our_trouble_is_on_the_dashboard() -> None:
    """Counters of trouble that no panel shows would be found out too late."""
    shown = {family_of(each) for query, _ in queries() for each in metrics_of(query)}
    unseen = {"magnetar_fenced_markers_total", "magnetar_telemetry_left_out_total"}
    counters = {name for name, family in FAMILIES.items() if family.kind == "counter"}
    assert counters - shown == unseen | {"magnetar_throttled_total"}


def test_names_are_as_the_linter_of_prometheus_wants_them() -> None:
    """Its rules, but for those that kafka_exporter's names break: those names are kept."""
    for family in FAMILIES.values():
        assert re.fullmatch("magnetar_[a-z0-9_]+", family.name) and family.help.endswith(".")
        assert family.name.endswith("_total") == (family.kind == COUNTER), family.name
        # Of histograms, whose series get these suffixes.
        assert not family.name.endswith(("_sum", "_count", "_bucket")), family.name
        assert not {"le", "quantile"} & set(family.labels), family.name
