"""Writes docs/metrics.md from the tables of metrics.

Run `python -m magnetar.metrics.document > docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.metrics import exporter_names, jmx_names
from magnetar.metrics.families import FAMILIES, SERIES_MAX, Family

_INTRODUCTION = """# Metrics

`python -m magnetar.metrics.document` writes this page from `magnetar/metrics/families.py`; it is
not edited by hand.

    magnetar serve --set metrics.listen=127.0.0.1:9404

With this setting the broker answers `GET /metrics` in Prometheus' text format. The endpoint is off
by default. The broker computes the values from its state at each scrape; between scrapes metrics
cost nothing. The broker serves 16 connections at once, and gathers metrics for one scrape at a
time. The endpoint has no authentication and shows transactional ids and names of topics, so let it
listen on trusted addresses only. The process metrics of prometheus-client (`process_*`: CPU,
memory, open files) are there too.

On the same address `GET /healthz` answers 200 while the broker is alive. `GET /readyz` answers 200
once the broker has recovered and serves clients. Otherwise both answer 503. A dashboard for Grafana
and alert rules are in [observability](observability/README.md), with a run book for each alert.
"""
_EXPORTER = f"""
## kafka_exporter's names
These are shown unless `metrics.names` says otherwise. At most {SERIES_MAX} partitions have series
of their own, and as many offsets of groups. `magnetar_series_left_out` counts the others.
"""
_JMX = """
## Strimzi's names of JMX beans
These are shown with `metrics.names=jmx` or `metrics.names=kafka_exporter,jmx`.
"""

_ADVICE = """
## What to watch
- `magnetar_oldest_open_transaction_seconds` above the longest timeout of your producers:
  `magnetar transactions describe ID` shows which partitions the transaction holds back.
- `magnetar_stable_offset_lag_records` that grows: read_committed readers of that partition stand
  still.
- `magnetar_oldest_vote_seconds` longer than your jobs take to decide: a driver is gone, and readers
  wait for the data of its workers. `magnetar transactions list --state Voted` shows the workers.
- `magnetar_transactions_healed_total` that grows: crashes left transactions open, or a client
  writes markers itself. The log has a line for each (`transaction healed`).
- `magnetar_late_settlements_total` that grows: syncs take seconds. See `magnetar_sync_seconds`.
- `magnetar_fenced_markers_total` above zero: a log was copied here from another cluster, whose
  coordinator epoch was higher. Outcomes are right. The broker's log has a line for each.
- `rate(magnetar_sync_seconds_sum) / rate(magnetar_sync_seconds_count)`: an acknowledgement waits at
  least so long.
"""


def document() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION, *_table(FAMILIES), _EXPORTER, *_table(exporter_names.FAMILIES)]
    lines += [_JMX, *_table(jmx_names.FAMILIES)]
    return "\n".join(lines) + "\n" + _ADVICE


def _table(families: Mapping[str, Family]) -> list[str]:
    lines = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{family.name}` | {family.kind} |"
        f" {', '.join(f'`{label}`' for label in family.labels) or '-'} | {family.help} |"
        for family in families.values()
    ]
    return lines


if __name__ == "__main__":
    print(document(), end="")
