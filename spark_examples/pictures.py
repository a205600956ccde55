"""Pictures of a run, as PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

from spark_examples.change_events import Session
from spark_examples.killing import Kill
from spark_examples.running import Ends

matplotlib.use("Agg")  # Files only: there may be no screen.

from matplotlib import pyplot  # noqa: E402  # after the choice above
from matplotlib.axes import Axes  # noqa: E402  # after the choice above

_COLOURS = {"broker": "tab:red", "job": "tab:purple", "task": "tab:orange", "writer": "tab:gray"}
_DOTS_PER_INCH = 90
_PARTS_MAX = 20


class Sample(NamedTuple):
    """The end of a topic at a moment of the monotonic clock, in seconds."""

    at: float
    ends: Ends
    #: Records that a read_committed reader had found by then.
    seen: int = 0


def draw_ledger(
    directory: Path,
    samples: Sequence[Sample],
    batches: Sequence[Mapping[str, Any]],
    kills: Sequence[Kill],
) -> Path:
    """Draw throughput, latency of batches and lags over time; kills are upright lines."""
    began_at = samples[0].at
    figure, (rate, latency, lag) = pyplot.subplots(3, sharex=True, figsize=(9, 8))
    ends_at = [batch["at"] - began_at for batch in batches]
    rate.step(ends_at, _rates(batches), where="pre")
    rate.set_ylabel("transfers booked per s")
    latency.plot(ends_at, [batch["took_ms"] / 1000 for batch in batches], ".-")
    latency.set_ylabel("a batch took, s")
    times = [sample.at - began_at for sample in samples]
    held = [sample.ends.written - sample.ends.stable for sample in samples]
    behind = [_behind(sample, batches) for sample in samples]
    lag.plot(times, held, label="stable offset behind the log's end: open transactions")
    lag.plot(times, behind, label="job behind the stable offset")
    lag.set_ylabel("offsets")
    lag.set_yscale("symlog", linthresh=100)
    lag.set_ylim(bottom=0)
    lag.set_xlabel("s")
    lag.legend(loc="upper left", fontsize="small")
    for axes in (rate, latency, lag):
        _mark(axes, kills, began_at)
    rate.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize="small", frameon=False)
    return _save(directory, "ledger.png")


def draw_backfill(directory: Path, samples: Sequence[Sample], kills: Sequence[Kill]) -> Path:
    """Draw the records in the log and those that a reader sees, over time."""
    began_at = samples[0].at
    _, axes = pyplot.subplots(figsize=(9, 4))
    times = [sample.at - began_at for sample in samples]
    axes.plot(times, [sample.ends.written for sample in samples], label="in the log")
    axes.plot(times, [sample.seen for sample in samples], label="read by a read_committed reader")
    axes.set_ylabel("records")
    axes.set_xlabel("s")
    _mark(axes, kills, began_at)
    axes.legend(loc="upper left", fontsize="small")
    return _save(directory, "backfill.png")


def draw_sessions(directory: Path, sessions: Sequence[Session]) -> Path:
    """Draw each part's sessions as bars over time; parts with most changes are on top."""
    changes = Counter[str]()
    for session in sessions:
        changes[session.part] += session.changes
    parts = [part for part, _ in changes.most_common(_PARTS_MAX)][::-1]
    began_s = min(session.first_s for session in sessions)
    _, axes = pyplot.subplots(figsize=(9, 1 + 0.3 * len(parts)))
    for row, part in enumerate(parts):
        bars = [
            ((session.first_s - began_s) / 3600, max(session.last_s - session.first_s, 60) / 3600)
            for session in sessions
            if session.part == part
        ]
        axes.broken_barh(bars, (row - 0.4, 0.8))
    axes.set_yticks(range(len(parts)), parts)
    axes.set_xlabel("hours since the first change")
    return _save(directory, "sessionize.png")


def _rates(batches: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the transfers of each batch over the time since the one before it."""
    rates = []
    before_at = None
    for batch in batches:
        since_s = batch["took_ms"] / 1000 if before_at is None else batch["at"] - before_at
        rates.append(batch["rows"] / max(since_s, 0.001))
        before_at = batch["at"]
    return rates


def _behind(sample: Sample, batches: Sequence[Mapping[str, Any]]) -> int:
    booked = [batch["offset"] for batch in batches if batch["at"] <= sample.at]
    return max(0, sample.ends.stable - (booked[-1] if booked else 0))


def _mark(axes: Axes, kills: Sequence[Kill], began_at: float) -> None:
    named = set()
    for kill in kills:
        label = None if kill.victim in named else f"kill -9 {kill.victim}"
        named.add(kill.victim)
        axes.axvline(kill.at - began_at, color=_COLOURS[kill.victim], linestyle=":", label=label)


def _save(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    pyplot.tight_layout()
    pyplot.savefig(directory / name, dpi=_DOTS_PER_INCH)
    pyplot.close()
    return directory / name
