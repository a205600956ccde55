"""docs/metrics.md, from the table: `python -m magnetar.metrics.document > docs/metrics.md`."""

from __future__ import annotations

from magnetar.metrics.families import FAMILIES

_INTRODUCTION = """# Metrics

Written by `python -m magnetar.metrics.document` from `magnetar/metrics/families.py`; not edited by
hand.

    magnetar serve --set metrics.listen=127.0.0.1:9404

answers `GET /metrics` in Prometheus' text format. Off by default. Values are read off the broker's
state when they are asked for; in between they cost nothing. One scrape is answered at a time. The
endpoint has no authentication and names transactional ids and topics: listen on addresses that you
trust. What prometheus-client tells of the process (`process_*`: CPU, memory, open files) is there
too.
"""

_ADVICE = """
## What to watch
- `magnetar_oldest_open_transaction_seconds` above the longest timeout of your producers:
  `magnetar transactions describe` with its transactional id says what it holds back.
- `magnetar_stable_offset_lag_records` that grows: readers of committed data stand still there.
- `magnetar_oldest_vote_seconds` above what your jobs take to decide: a driver is gone, and readers
  of what its workers wrote wait; `magnetar transactions list --state Voted` names them.
- `magnetar_transactions_healed_total` that grows: crashes left something open, or a client writes
  markers; each is a line in the log (`transaction healed`).
- `magnetar_late_settlements_total` that grows: syncs take seconds; see `magnetar_sync_seconds`.
- `rate(magnetar_sync_seconds_sum) / rate(magnetar_sync_seconds_count)`: what an acknowledgement
  waits for at least.
"""


def document() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION, "| name | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{family.name}` | {family.kind} |"
        f" {', '.join(f'`{label}`' for label in family.labels) or '-'} | {family.help} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(lines) + "\n" + _ADVICE


if __name__ == "__main__":
    print(document(), end="")
