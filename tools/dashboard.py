"""Writes Grafana's dashboard: `python -m tools.dashboard > docs/observability/dashboard.json`.

A test holds the queries to the metrics that the broker tells.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_BROKER = 'job=~"$job"'


class Panel(NamedTuple):
    """One graph: its queries, each with the legend of its lines."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    about: str = ""


class Row(NamedTuple):
    title: str
    panels: Sequence[Panel]


def _quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{_BROKER}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {rate})"


def _rate(metric: str, by: str = "") -> str:
    rate = f"rate({metric}{{{_BROKER}}}[$__rate_interval])"
    return f"sum by ({by}) ({rate})" if by else f"sum({rate})"


ROWS = (
    Row(
        "Transactions",
        (
            Panel(
                "Open transactions",
                "short",
                [
                    (f"magnetar_transactions_open{{{_BROKER}}}", "open"),
                    (f"magnetar_votes_waiting{{{_BROKER}}}", "votes that wait"),
                ],
            ),
            Panel(
                "Age of the oldest open transaction",
                "s",
                [
                    (
                        f"magnetar_oldest_open_transaction_seconds{{{_BROKER}}}",
                        "{{transactional_id}} {{txn_id}}",
                    ),
                    (f"magnetar_oldest_vote_seconds{{{_BROKER}}}", "vote {{transactional_id}}"),
                ],
                "Readers of committed records wait for it in every partition that it has written.",
            ),
            Panel(
                "Records behind open transactions",
                "short",
                [(f"magnetar_stable_offset_lag_records{{{_BROKER}}}", "{{topic}}")],
            ),
            Panel(
                "Transactions that did not end by themselves",
                "short",
                [
                    (_rate("magnetar_transactions_timed_out_total"), "timed out"),
                    (_rate("magnetar_transactions_healed_total", "remedy"), "healed: {{remedy}}"),
                    (_rate("magnetar_votes_expired_total"), "votes expired"),
                ],
            ),
        ),
    ),
    Row(
        "Topics and groups",
        (
            Panel(
                "Records in, by topic",
                "cps",
                [
                    (
                        "sum by (topic) (rate(kafka_topic_partition_current_offset"
                        f"{{{_BROKER}}}[$__rate_interval]))",
                        "{{topic}}",
                    )
                ],
                "Markers of transactions count too.",
            ),
            Panel(
                "Lag, by group",
                "short",
                [(f"magnetar_group_lag_records{{{_BROKER}}}", "{{group}}")],
            ),
            Panel(
                "Groups, by state",
                "short",
                [
                    (
                        f"sum by (protocol, state) (magnetar_groups{{{_BROKER}}})",
                        "{{protocol}} {{state}}",
                    )
                ],
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "Requests, by API", "reqps", [(_rate("magnetar_requests_total", "api"), "{{api}}")]
            ),
            Panel(
                "Latency, by API",
                "s",
                [
                    (_quantile(0.5, "magnetar_request_seconds", "api"), "p50 {{api}}"),
                    (_quantile(0.99, "magnetar_request_seconds", "api"), "p99 {{api}}"),
                ],
                "From decoding to the answer. A Fetch that waits for records counts its wait.",
            ),
            Panel(
                "Refusals and logins",
                "short",
                [
                    (_rate("magnetar_refusals_total", "api, error"), "{{api}} {{error}}"),
                    (
                        _rate("magnetar_logins_total", "mechanism, outcome"),
                        "{{mechanism}} {{outcome}}",
                    ),
                    (_rate("magnetar_handshakes_total", "outcome"), "TLS {{outcome}}"),
                ],
            ),
            Panel(
                "Bytes",
                "Bps",
                [
                    (_rate("magnetar_received_bytes_total"), "in"),
                    (_rate("magnetar_sent_bytes_total"), "out"),
                ],
            ),
            Panel("Connections", "short", [(f"magnetar_connections{{{_BROKER}}}", "clients")]),
            Panel(
                "Pauses by quotas",
                "s",
                [(_rate("magnetar_throttle_seconds_total", "quota"), "{{quota}}")],
            ),
        ),
    ),
    Row(
        "Disk and process",
        (
            Panel(
                "Syncs",
                "s",
                [
                    (_quantile(0.5, "magnetar_sync_seconds"), "p50"),
                    (_quantile(0.99, "magnetar_sync_seconds"), "p99"),
                ],
                "An acknowledgement waits for one of them at least.",
            ),
            Panel(
                "Trouble with the disk",
                "short",
                [
                    (_rate("magnetar_full_disk_refusals_total"), "full"),
                    (_rate("magnetar_unreadable_reads_total"), "unreadable"),
                    (_rate("magnetar_late_settlements_total"), "commits answered late"),
                ],
            ),
            Panel(
                "CPU",
                "percentunit",
                [(_rate("process_cpu_seconds_total"), "cores")],
            ),
            Panel(
                "Memory",
                "bytes",
                [
                    (f"process_resident_memory_bytes{{{_BROKER}}}", "resident"),
                    (
                        f"sum by (account) (magnetar_request_memory_bytes{{{_BROKER}}})",
                        "requests: {{account}}",
                    ),
                ],
            ),
            Panel(
                "Work in threads",
                "short",
                [(f"magnetar_blocking_jobs{{{_BROKER}}}", "{{pool}}")],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": place})
        y += 1
        for number, panel in enumerate(row.panels):
            x = number * _WIDTH % _COLUMNS
            at = y + number * _WIDTH // _COLUMNS * _HEIGHT
            panels.append(_panel(panel, len(panels) + 1, x, at))
        y += -(-len(row.panels) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "title": "magnetar",
        "uid": "magnetar",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "tags": ["kafka", "magnetar"],
        "templating": {"list": [_datasource(), _job()]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(magnetar_connections, job)",
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
