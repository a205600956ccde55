"""Lag over time: a thread samples every group's lag while the console is visited.

The samples are in memory, and their number is bounded. One sample asks for all groups in a handful
of requests. A group's lag has two parts: the records that read_committed members may read now, and
the records that wait for open transactions. Near the end of a partition the thread reads the log,
so that markers and aborted records do not count as lag. Far from the end these matter little, and
reading the log every few seconds would cost much: there each offset counts as a record.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from magnetar.client import Client, ClientError, TopicPartition
from magnetar.client.cluster import Leaders
from magnetar.client.group_lags import Standing, known_leaders, standings
from magnetar.client.groups import list_groups
from magnetar.client.true_lag import TrueLag

INTERVAL_S = 5.0
#: One hour of samples for each group.
SAMPLES_MAX = 720
GROUPS_MAX = 500
#: The samples whose committed offsets are kept too, to see whether a group advances.
LOOKBACK = 4
#: The log is read where at most so many offsets are left to read.
_NEAR_OFFSETS = 5000
#: The longest time that one sample spends on reading logs.
_COUNTING_S = 0.25
#: The thread ends after so long without a visitor. The next visit starts a new thread.
_UNSEEN_S_MAX = 1800.0


class Sample(NamedTuple):
    """A group at one moment; the time is in seconds since 1970."""

    time_s: float
    to_read: int
    held_back: int


class Earlier(NamedTuple):
    """The committed offsets of a group at an earlier moment: `steady_s`, by `time.monotonic`."""

    steady_s: float
    committed: dict[TopicPartition, int]


class LagHistory:
    """The samples of each group, the newest last."""

    def __init__(
        self,
        ask: Callable[[Callable[[Client], Any]], Any],
        true_lag: TrueLag,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._true_lag = true_lag
        self._now = now
        self._samples: dict[str, deque[Sample]] = {}
        self._committed: dict[str, deque[Earlier]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = 0.0
        self._is_begun = False
        self.problem = ""

    def begin(self) -> None:
        """Begin to take samples."""
        self._is_begun = True
        self._take_part()

    def of(self, group_id: str) -> list[Sample]:
        """Return the samples of a group."""
        if self._is_begun:
            self._take_part()
        with self._lock:
            return list(self._samples.get(group_id, ()))

    def earlier(self, group_id: str) -> Earlier | None:
        """Return the oldest of the last `LOOKBACK` committed offsets; None: there are none."""
        with self._lock:
            known = self._committed.get(group_id)
            return known[0] if known else None

    def stop(self) -> None:
        """Take no more samples."""
        self._wake.set()

    def take(self, client: Client) -> None:
        """Take one sample of every group."""
        every = standings(client, [group.group_id for group in list_groups(client)])
        leaders = known_leaders(client, {each.topic for one in every.values() for each in one})
        deadline = time.monotonic() + _COUNTING_S
        now, steady_s = self._now(), time.monotonic()
        taken = {
            group_id: Sample(
                now,
                sum(self._to_read(client, leaders, each, deadline) for each in found),
                sum(each.held_back for each in found),
            )
            for group_id, found in every.items()
        }
        with self._lock:
            # The samples of a deleted group are dropped.
            kept = {name: self._samples[name] for name in every if name in self._samples}
            self._committed = {
                name: self._committed.get(name, deque(maxlen=LOOKBACK))
                for name in list(every)[:GROUPS_MAX]
            }
            for name, offsets in self._committed.items():
                committed = {each.place: each.committed for each in every[name]}
                offsets.append(Earlier(steady_s, committed))
            for group_id, sample in taken.items():
                if group_id not in kept and len(kept) >= GROUPS_MAX:
                    continue
                samples = kept.setdefault(group_id, deque(maxlen=SAMPLES_MAX))
                samples.append(sample)
            self._samples = kept

    def _to_read(self, client: Client, leaders: Leaders, each: Standing, deadline: float) -> int:
        first, stable = each.committed, min(each.stable, each.end)
        is_near = each.readable <= _NEAR_OFFSETS and time.monotonic() < deadline
        if is_near and each.place in leaders:
            return self._true_lag.count(client, leaders, each.place, first, stable).records_max
        return self._true_lag.known(each.place, first, stable).records_max

    def _take_part(self) -> None:
        """Note a visit, and start the thread if none runs."""
        with self._lock:
            self._seen = time.monotonic()
            if self._thread is None and not self._wake.is_set():
                self._thread = threading.Thread(target=self._run, name="lag-history", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._wake.is_set():
            try:
                self._ask(self.take)
                self.problem = ""
            except ClientError as failure:
                # The next sample may succeed. The chart has a gap until then.
                self.problem = str(failure)
            self._wake.wait(INTERVAL_S)
            with self._lock:
                if time.monotonic() - self._seen > _UNSEEN_S_MAX:
                    self._thread = None
                    return
