"""The brokers under measurement, each with its own defaults, four partitions, a directory of its
own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from compat_tests import brokers
from compat_tests.brokers import Broker, KafkaBroker, MagnetarBroker
from tools.reference_kafka import ReferenceKafka
from tools.reference_kafka.broker import SERVER_OPTIONS

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


#: Settings, or what makes them for a broker's directory.
Settings = Mapping[str, str] | Callable[[Path], Mapping[str, str]]


def make_subject(
    kind: str, directory: Path, settings: Mapping[str, str], protocols: Sequence[str]
) -> Broker:
    """Return a broker as a user would run it: no test settings, Kafka with its usual heap."""
    if kind == "magnetar":
        magnetar = MagnetarBroker(directory, protocols=protocols)
        magnetar.settings = {"num.partitions": "4", **settings}
        return magnetar
    kafka = KafkaBroker(directory, protocols=protocols)
    kafka.settings = {"num.partitions": "4", **settings}
    options = (SERVER_OPTIONS, kafka.listeners)
    kafka.use(ReferenceKafka(kafka.port, directory, kafka.settings, *options))
    return kafka


@contextmanager
def running(
    kind: str, settings: Settings | None = None, protocols: Sequence[str] = ()
) -> Iterator[Broker]:
    """A started broker; killed and its files removed at the end of the block.

    `protocols`: what it listens for beside PLAINTEXT.
    """
    with TemporaryDirectory(prefix=f"bench-{kind}-") as name:
        directory = Path(name)
        given = settings(directory) if callable(settings) else settings or {}
        with brokers.running(make_subject(kind, directory, given, protocols)) as broker:
            yield broker


def cpu_seconds(pid: int) -> float:
    """Return user and system time that the process, and its children that ended, have used.

    To the nanosecond for the process; a tick, of 10 ms, for its children.
    """
    # The clock of another process: linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK.
    own_s = time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return own_s + sum(map(int, fields[13:15])) / _CLOCK_TICKS


def node_pids(broker: Broker) -> list[int]:
    """Return the processes that serve: the nodes, without their supervisor."""
    if isinstance(broker, MagnetarBroker) and broker.workers == 1:
        return [broker.pid]
    return broker.node_pids()


def cpu_of_nodes(broker: Broker) -> float:
    """Return user and system time that all nodes of a broker have used so far."""
    return sum(cpu_seconds(pid) for pid in node_pids(broker))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
