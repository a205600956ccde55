"""`make isolation`: how long one client waits while another one does its worst; writes a table.

Each load has a broker of its own, started by the command line. A probe in another process asks for
ApiVersions every 3 ms on its own connection; the longest round trip during the load is the figure.
The table, docs/isolation.md, shows it with the broker's memory before and after, and whether the
accounts of memory are empty once the load's connections are closed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import NamedTuple

from benchmarks.frames import Frames, framed
from benchmarks.subjects import resident_bytes
from compat_tests import brokers
from compat_tests.brokers import MagnetarBroker
from tools.ports import free_port
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest

DOCUMENT = Path(__file__).parent.parent / "docs" / "isolation.md"
#: What is wanted of the longest turn, by whether anything else goes on.
QUIET_MS, LOADED_MS = 20, 50
#: How often a load is measured that is not as wanted.
TRIES = 2
_PROBE_EVERY_S = 0.003
#: The probe goes on for so long after a load: what it left behind counts.
_AFTERMATH_S = 0.3
_EMPTY_WITHIN_S = 10.0
_ACCOUNT = "magnetar_request_memory_bytes{"
_HEAD = """\
# Isolation

One client waits while another one does its worst: the longest of the round trips of ApiVersions,
asked for every 3 ms on a connection of its own, beside each load. Written by `make isolation`,
which starts a broker for each load. A turn is what the broker's event loop does before it serves
others, in CPU time of its thread: other work on the machine does not add to it, as it does to a
round trip. Wanted of the longest turn: at most {quiet} ms where nothing else goes on, {loaded} ms
beside a load. A load that takes longer is measured {tries} times, and the least figure stands.
Clients and broker share {cores} cores; load of the machine before the run: {load}.

Memory has four accounts, and `queued.max.request.bytes` is the limit of each: requests in flight,
partial requests, waiting requests, and answers that were not taken. They are apart because
different parties end what they hold. In one account a client that waits, or does not read, could
stop all others. What the members of all groups have said of themselves may take as much again.

| load | turn, ms | as wanted | round trip, ms | memory before, MB | after, MB | accounts empty |
|---|---:|---|---:|---:|---:|---|
"""


class Figures(NamedTuple):
    """What was seen beside one load."""

    turn_ms: float
    #: The slowest callback of that turn.
    turn: str
    longest_ms: float
    before_bytes: int
    after_bytes: int
    is_empty: bool

    def row(self, name: str) -> str:
        wanted_ms = _wanted_ms(name)
        cells = (
            name,
            _shown(self.turn_ms),
            "yes" if self.turn_ms <= wanted_ms else "**no**",
            _shown(self.longest_ms),
            f"{self.before_bytes / 1e6:.0f}",
            f"{self.after_bytes / 1e6:.0f}",
            "yes" if self.is_empty else "**no**",
        )
        return "| " + " | ".join(cells) + " |"


def _shown(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}"


def _wanted_ms(name: str) -> int:
    return QUIET_MS if name == "nothing" else LOADED_MS


class Stage:
    """A running broker with a probe, for one load."""

    def __init__(self, broker: MagnetarBroker, metrics_port: int, turns: Path) -> None:
        """`turns`: where the broker writes its long turns."""
        self.broker = broker
        self._turns = turns
        self.bootstrap = broker.bootstrap
        self.figures: Figures | None = None
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self._open = ExitStack()

    def connect(self) -> Frames:
        """Return a connection that is closed when the measurement is over."""
        return self._open.enter_context(Frames(self.bootstrap))

    def pipeline(self, request: Message, version: int, count: int) -> None:
        """Send a request many times without waiting, and return when all are answered."""
        connection = self.connect()
        data = framed(request, version) * count
        sender = Thread(target=connection.send_bytes, args=(data,))
        sender.start()
        for _ in range(count):
            connection.receive_frame()
        sender.join()

    def send_refused(self, data: bytes) -> None:
        """Send a frame that the broker may refuse by closing the connection, in mid-frame even."""
        connection = self.connect()
        try:
            connection.send_bytes(data)
            connection.receive_frame()
        except ConnectionError:
            return

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the block: to be entered once, when all that it needs is there."""
        self._is_empty()  # The first scrape imports a library.
        time.sleep(_AFTERMATH_S)  # What the preparations left to do is not the load's.
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_probe, args=(self.bootstrap, theirs)
        )
        process.start()
        try:
            ours.recv()
            before_bytes = resident_bytes(self.broker.pid)
            seen = self._turns.stat().st_size
            yield
            time.sleep(_AFTERMATH_S)  # The probe measures the aftermath too.
            ours.send(None)
            longest_s = ours.recv()
            turn_ms, turn = self._longest_turn(seen)
        finally:
            process.kill()
            process.join()
        self._open.close()
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while not (is_empty := self._is_empty()) and time.monotonic() < deadline:
            time.sleep(0.1)  # The accounts are asked for again, until the deadline.
        self.figures = Figures(
            turn_ms, turn, longest_s * 1000, before_bytes, resident_bytes(self.broker.pid), is_empty
        )

    def _longest_turn(self, seen: int) -> tuple[float, str]:
        """Return the longest turn that was written behind the `seen` bytes, and what it did."""
        with self._turns.open() as lines:
            lines.seek(seen)
            turns = [line.split(" ", 2) for line in lines]
        longest = max(turns, key=lambda turn: float(turn[0]), default=["0", "0", ""])
        return float(longest[0]), f"{longest[1]} ms of it in {longest[2].strip()}"

    def _is_empty(self) -> bool:
        with urllib.request.urlopen(self._metrics) as answer:
            lines = answer.read().decode().splitlines()
        held = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(_ACCOUNT)]
        assert held, "the broker shows its accounts"
        return not any(held)


def _probe(bootstrap: str, parent: Connection) -> None:
    """Ask again and again until told to stop; then send the longest round trip, in seconds."""
    frame = framed(ApiVersionsRequest(), 0)
    longest_s = 0.0
    with Frames(bootstrap) as connection:
        connection.send_bytes(frame)
        connection.receive_frame()
        parent.send(None)
        while not parent.poll(_PROBE_EVERY_S):
            began_at = time.perf_counter()
            connection.send_bytes(frame)
            connection.receive_frame()
            longest_s = max(longest_s, time.perf_counter() - began_at)
    parent.send(longest_s)


def measure(name: str) -> Figures:
    """Return the figures of one load, by its name."""
    from benchmarks import handshake_load
    from benchmarks.isolation_loads import LOADS

    port = free_port()
    load = LOADS[name]
    with TemporaryDirectory(prefix="isolation-") as directory:
        broker = MagnetarBroker(Path(directory), protocols=["SSL"])
        broker.settings = {
            **handshake_load.settings(Path(directory)),
            "num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "metrics.listen": f"127.0.0.1:{port}",
        }
        turns = Path(directory) / "turns"
        turns.touch()
        broker.program = [sys.executable, "-m", "benchmarks.watched_broker", str(turns)]
        with brokers.running(broker):
            stage = Stage(broker, port, turns)
            load(stage)
    assert stage.figures is not None, f"{name} measures nothing"
    return stage.figures


def main() -> int:
    from benchmarks.isolation_loads import LOADS

    parser = argparse.ArgumentParser(description=__doc__, prog="make isolation")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(LOADS),
        metavar="LOAD",
        help="print some rows alone: a load is named as in the first column of docs/isolation.md",
    )
    names = parser.parse_args().only
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    rows = []
    for name in names or LOADS:
        figures = measure(name)
        for _ in range(TRIES - 1):
            if figures.turn_ms > _wanted_ms(name):
                figures = min(figures, measure(name))
        rows.append(figures.row(name))
        print(rows[-1], figures.turn, flush=True)
    if names is None:
        head = _HEAD.format(
            quiet=QUIET_MS, loaded=LOADED_MS, tries=TRIES, cores=os.cpu_count(), load=load
        )
        DOCUMENT.write_text(head + "\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
