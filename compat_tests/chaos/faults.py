"""What happens to a cluster, one fault after the other, and how long clients waited."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from compat_tests.chaos.cluster_broker import ClusterBroker
from compat_tests.chaos.probe import Probe
from compat_tests.pipeline.supervisor import Report

#: Longer than a lease, and than what follows it.
_LONG_S = 9.0
_SHORT_S = 2.0
_HEALED_WITHIN_S = 60.0
#: Left at the end of a run for what is under way to settle.
_SETTLES_S = 20.0


class Faults:
    """Strikes a cluster until told to stop. Each fault ends before the next begins."""

    def __init__(self, broker: ClusterBroker, report: Report, seed: int) -> None:
        self._broker, self._report = broker, report
        self._random = random.Random(seed)
        self._probe = Probe(broker.bootstrap, f"probe-{seed}")
        self._ends = threading.Event()
        self._waits: defaultdict[str, list[float]] = defaultdict(list)
        #: What the cluster has not got over.
        self.faults: list[str] = []
        self._kinds: dict[str, Callable[[], None]] = {
            "process killed": self._kill_process,
            "host killed": self._kill_host,
            "node paused past its lease": lambda: self._pause(_LONG_S),
            "node paused": lambda: self._pause(_SHORT_S),
            "node restarted": self._restart,
            "node cut off": lambda: self._spoil("cut", _SHORT_S),
            "node cut off past its lease": lambda: self._spoil("cut", _LONG_S),
            "node hanging": lambda: self._spoil("hang", _SHORT_S),
            "node hanging past its lease": lambda: self._spoil("hang", _LONG_S),
            "answers lost": lambda: self._spoil("lose_answers", _SHORT_S),
            "database slow": self._slow,
            "database's standby away": lambda: self._hold_standby(_SHORT_S),
            "database's standby away past leases": lambda: self._hold_standby(2 * _LONG_S),
            "database connections ended": broker.database.end_backends,
            "database restarted": broker.database.restart,
            "database failed over": broker.database.fail_over,
        }
        if broker.bucket is not None:
            self._kinds["bucket away"] = self._spoil_bucket

    @contextmanager
    def raging(self, duration_s: float) -> Iterator[None]:
        """Strike while the block runs, for so long at most."""
        rage = threading.Thread(target=self._rage, args=(duration_s,), daemon=True)
        rage.start()
        try:
            yield
        finally:
            self._ends.set()
            rage.join(_HEALED_WITHIN_S + _SETTLES_S)

    def told(self) -> str:
        """Return a table of the faults, and how long clients waited."""
        count = sum(map(len, self._waits.values()))
        lines = [f"{count} faults; a record waited, in seconds:"]
        lines.append(f"  {'fault':<30} {'times':>5} {'p50':>6} {'worst':>6}")
        for kind, waits in sorted(self._waits.items()):
            lines.append(f"  {kind:<30} {len(waits):>5} {median(waits):>6.1f} {max(waits):>6.1f}")
        errors = self._probe.errors
        return "\n".join([*lines, f"errors of producers: {len(errors)} {errors[:3]}"])

    def _rage(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s - _SETTLES_S
        self._probe.start()
        try:
            self._settle(time.monotonic())
            while time.monotonic() < end_s and not self._ends.is_set():
                self._strike(self._random.choice([*self._kinds]))
                self._ends.wait(self._random.uniform(0.5, 4.0))
        except Exception as failure:  # told as a fault, on the thread of the run
            self.faults.append(f"the faults ended: {type(failure).__name__}: {failure}")
        finally:
            self._broker.heal()
            self._probe.end()

    def _strike(self, kind: str) -> None:
        began_s = time.monotonic()
        self._report(f"{kind}")
        self._kinds[kind]()
        self._broker.heal()
        is_settled = self._settle(time.monotonic())
        longest = self._probe.longest(began_s - 1.0, time.monotonic())
        self._waits[kind].append(longest)
        self._report(f"{kind}: a record waited {longest:.1f} s at most")
        if not is_settled:
            self.faults.append(f"{kind}: not every partition serves {_HEALED_WITHIN_S:.0f} s later")

    def _settle(self, since_s: float) -> bool:
        """Return whether every partition serves again, as soon as it does."""
        while time.monotonic() < since_s + _HEALED_WITHIN_S:
            if self._probe.is_served_since(since_s):
                return True
            time.sleep(0.05)
        return False

    # --- the faults

    def _victim(self) -> int:
        return self._random.choice([*self._broker.nodes])

    def _kill_process(self) -> None:
        for pid in self._broker.nodes[self._victim()].pids()[1:]:
            os.kill(pid, signal.SIGKILL)

    def _kill_host(self) -> None:
        self._broker.nodes[self._victim()].kill_host()
        time.sleep(_LONG_S)

    def _pause(self, seconds: float) -> None:
        for pid in self._broker.nodes[self._victim()].pids()[1:]:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)

    def _restart(self) -> None:
        node = self._broker.nodes[self._victim()]
        code = node.stop()
        if code != 0:
            self.faults.append(f"node {node.node_id} ended with {code} when it was told to stop")

    def _spoil(self, how: str, seconds: float) -> None:
        getattr(self._broker.proxies[self._victim()], how)()
        time.sleep(seconds)

    def _slow(self) -> None:
        for proxy in self._broker.proxies.values():
            proxy.delay(0.1)
        time.sleep(_SHORT_S)

    def _hold_standby(self, seconds: float) -> None:
        with self._broker.database.standby_away():
            time.sleep(seconds)  # So long the fault lasts.

    def _spoil_bucket(self) -> None:
        assert self._broker.bucket is not None
        how = self._random.choice(("cut", "hang", "lose_answers"))
        getattr(self._broker.bucket, how)()
        time.sleep(self._random.choice((_SHORT_S, _LONG_S)))
