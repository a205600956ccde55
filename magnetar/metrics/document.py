"""docs/metrics.md, from the table: `python -m magnetar.metrics.document > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.metrics import exporter_names, jmx_names
from magnetar.metrics.families import FAMILIES, SERIES_MAX, Family

_INTRODUCTION = """# Metrics

`python -m magnetar.metrics.document` writes this page from `magnetar/metrics/families.py`; it is
not edited by hand.

    magnetar serve --set metrics.listen=127.0.0.1:9404

answers `GET /metrics` in Prometheus' text format. It is off by default. The broker reads the values
off its state at each scrape; in between they cost nothing. It answers one scrape at a time. The
endpoint has no authentication and names transactional ids and topics: listen on addresses that you
trust. The metrics of the process by prometheus-client (`process_*`: CPU, memory, open files) are
there too.

On the same address `GET /healthz` answers 200 while the broker is alive, and `GET /readyz` once it
has recovered and serves clients; both answer 503 where that is not so. A dashboard for Grafana and
alert rules are in [observability](observability/README.md), with a run book for each alert.
"""
_EXPORTER = f"""
## kafka_exporter's names
Told unless `metrics.names` says otherwise. At most {SERIES_MAX} partitions, and as many offsets of
groups, are named: `magnetar_series_left_out` counts the others.
"""
_JMX = """
## Strimzi's names of JMX beans
Told with `metrics.names=jmx`, or `metrics.names=kafka_exporter,jmx`.
"""

_ADVICE = """
## What to watch
- `magnetar_oldest_open_transaction_seconds` above the longest timeout of your producers:
  `magnetar transactions describe` with its transactional id shows what it holds back.
- `magnetar_stable_offset_lag_records` that grows: readers of committed data stand still there.
- `magnetar_oldest_vote_seconds` above what your jobs take to decide: a driver is gone, and readers
  of what its workers wrote wait; `magnetar transactions list --state Voted` names them.
- `magnetar_transactions_healed_total` that grows: crashes left something open, or a client writes
  markers; each is a line in the log (`transaction healed`).
- `magnetar_late_settlements_total` that grows: syncs take seconds; see `magnetar_sync_seconds`.
- `magnetar_fenced_markers_total` above zero: a log was copied here from another cluster whose
  coordinator had come further. Outcomes are right; each is a line in the log.
- `rate(magnetar_sync_seconds_sum) / rate(magnetar_sync_seconds_count)`: the time that an
  acknowledgement waits at least.
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
