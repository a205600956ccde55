"""What is done to the processes of a long run, and to their broker: killed and stopped, each at its
own pace.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compat_tests.brokers import START_TIMEOUT_S, Broker, BrokerFailed, MagnetarBroker
from compat_tests.pipeline.supervisor import Supervised
from compat_tests.raw import Closed, Connection

API_VERSIONS = 18
_TOLD_EVERY_S = 10.0
_TICK_S = 0.05


@dataclass(frozen=True)
class Disturbances:
    """How often each happens, and how long a stopped process sleeps, at least and at most."""

    broker_kill_every_s: float
    pause_every_s: float
    kill_every_s: float
    pause_s: tuple[float, float]


class Verdict(NamedTuple):
    """Empty `faults` is a pass; each is a sentence with a witness."""

    faults: list[str]
    summary: str


class Disturber:
    """Keeps all processes running, and does to them and to their broker what is due."""

    def __init__(
        self, broker: Broker, processes: Sequence[Supervised], disturbances: Disturbances
    ) -> None:
        #: Of each kill of a broker or a node, the seconds until all answered again.
        self.starts_s: list[float] = []
        self._broker = broker
        self._processes = processes
        self._disturbances = disturbances
        self._counters: Counter[str] = Counter()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()

    def disturb(self, duration_s: float, tell: Callable[[], None]) -> None:
        """Disturb for so long, and `tell` now and then. Who sleeps then is left to the caller.

        Raises BrokerFailed where magnetar ends by itself.
        """
        ends_at = time.monotonic() + duration_s
        self._repeat(self._disturbances.broker_kill_every_s, self._kill_broker)
        self._repeat(self._disturbances.pause_every_s, self._pause_one)
        self._repeat(self._disturbances.kill_every_s, self._kill_one)
        self._repeat(_TOLD_EVERY_S, tell)
        while time.monotonic() < ends_at:
            self.tick()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def tick(self) -> None:
        """Start what has ended, and let a moment pass. Raises BrokerFailed."""
        for process in self._processes:
            process.keep_running()
        if isinstance(self._broker, MagnetarBroker) and self._broker.returncode is not None:
            raise BrokerFailed(f"it ended by itself with {self._broker.returncode}")
        time.sleep(_TICK_S)

    def done(self) -> str:
        """Say how often each was done."""
        return ", ".join(f"{count} {what}" for what, count in self._counters.items())

    def told_starts(self) -> str:
        """Say how long the starts after kills took."""
        if not self.starts_s:
            return "no start"
        ordered = sorted(self.starts_s)
        return (
            f"starts took {statistics.median(ordered):.2f} s in the median,"
            f" {ordered[len(ordered) * 95 // 100]:.2f} s at p95, {ordered[-1]:.2f} s at most"
        )

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._ticket), action))

    def _repeat(self, every_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self._after(every_s, again)

        self._after(every_s, again)

    def _kill_broker(self) -> None:
        began_at = time.monotonic()
        if isinstance(self._broker, MagnetarBroker) and self._broker.workers > 1:
            self._counters["node kills"] += 1
            _kill_node(self._broker)
        else:
            self._counters["broker kills"] += 1
            self._broker.restart(clean=False)
        self.starts_s.append(time.monotonic() - began_at)

    def _pause_one(self) -> None:
        self._counters["pauses"] += 1
        paused = random.choice(self._processes)
        paused.pause()
        self._after(random.uniform(*self._disturbances.pause_s), paused.resume)

    def _kill_one(self) -> None:
        self._counters["kills"] += 1
        random.choice(self._processes).kill()


def _kill_node(broker: MagnetarBroker) -> None:
    """Kill one of several nodes; return when each of them answers again."""
    os.kill(random.choice(broker.node_pids()), signal.SIGKILL)
    deadline = time.monotonic() + START_TIMEOUT_S
    for address in broker.node_addresses:
        while not _answers(address):
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the node at {address} does not come back")


def _answers(address: str) -> bool:
    """Whether a node answers a request; its address is open even while it is started again."""
    try:
        with Connection(address) as connection:
            return connection.serves(API_VERSIONS)
    except (OSError, Closed):
        return False
