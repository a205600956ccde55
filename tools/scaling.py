"""What nodes bring on more cores: computed from measured figures, and simulated as queues.

    python -m tools.scaling [--document]

Each node is one core and works on one thing at a time, in order. A node has one sync under way;
what waits meanwhile rides the next one. All nodes sync one disk, and the more of them do so at
once, the longer a sync takes. Clients are on other machines and ask as soon as they are answered.
The tables of docs/scaling.md are drawn by `--document`.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple, TypeAlias

from tools.drawn_sections import table, with_sections

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
CORES = (1, 2, 4, 8, 16)
SEED = 18

#: CPU of one node, us: of a Produce of one record (550 clients), of an offset commit, of a
#: transaction over 4 partitions. docs/decisions/0053-cost-of-nodes.md says where they are from.
REQUEST_US, OFFSET_COMMIT_US, TRANSACTION_US = 55.0, 180.0, 1_260.0
#: What the first two cost over nodes, in parts of that.
OVER_NODES = 1.05
#: What each other node that takes part adds to a transaction, us, on both sides.
OTHER_NODE_US = 1_050.0
#: Of a transaction's CPU, by the calls of its requests (docs/architecture.md): AddPartitionsToTxn,
#: the four Produces, EndTxn.
ADD, PRODUCES, END = 0.13, 0.65, 0.22
PRODUCE = PRODUCES / 4
#: Syncs per second of one disk, of all nodes together, by how many sync at once
#: (docs/decisions/0049-nodes.md).
SYNCS_PER_S = {1: 7_900, 2: 10_700, 3: 10_800}
SYNCS_PER_S_MAX = 10_900
#: From a client's answer to the arrival of its next request.
NETWORK_US = 100.0
SMALL_CLIENTS, PRODUCERS_PER_NODE = 550, 16
#: Simulated time: until all clients were answered once, and what is measured after that.
_WARM_US = 120_000.0
_SHORT_US, _LONG_US = 50_000.0, 300_000.0


class Compute(NamedTuple):
    """CPU of one node."""

    node: int
    us: float


class Sync(NamedTuple):
    """A wait until what the node has appended is on the disk."""

    node: int


#: One operation: each element is what it waits for next; of a list, for all of its operations.
Work: TypeAlias = Generator["Compute | Sync | list[Work]", None, None]


class Queues:
    """The nodes, their disk, and the time."""

    def __init__(self, nodes: int, random: Random) -> None:
        self.now_us = 0.0
        self._random = random
        self._free_at_us = [0.0] * nodes
        #: By node: those that ride its next sync.
        self._waiting: list[list[Callable[[], None]]] = [[] for _ in range(nodes)]
        self._syncing: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self, until_us: float) -> None:
        """Let the time pass."""
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, happen = heapq.heappop(self._events)
            happen()

    def after(self, us: float, happen: Callable[[], None]) -> None:
        """Call `happen` when so much time has passed."""
        heapq.heappush(self._events, (self.now_us + us, next(self._order), happen))

    def carry_out(self, work: Work, done: Callable[[], None]) -> None:
        """Carry an operation on to its next wait; call `done` at its end."""
        wait = next(work, None)
        go_on = partial(self.carry_out, work, done)
        if wait is None:
            done()
        elif isinstance(wait, Compute):
            begins_us = max(self.now_us, self._free_at_us[wait.node])
            ends_us = begins_us + wait.us * self._random.uniform(0.5, 1.5)
            self._free_at_us[wait.node] = ends_us
            self.after(ends_us - self.now_us, go_on)
        elif isinstance(wait, Sync):
            self._waiting[wait.node].append(go_on)
            self._sync(wait.node)
        else:
            left = len(wait)

            def joined() -> None:
                nonlocal left
                left -= 1
                if not left:
                    go_on()

            for part in wait:
                self.carry_out(part, joined)

    def _sync(self, node: int) -> None:
        """Begin a sync of what waits, unless the node has one under way."""
        if node in self._syncing or not self._waiting[node]:
            return
        served, self._waiting[node] = self._waiting[node], []
        self._syncing.add(node)
        at_once = len(self._syncing)
        mean_us = at_once / SYNCS_PER_S.get(at_once, SYNCS_PER_S_MAX) * 1e6
        self.after(mean_us * self._random.uniform(0.8, 1.2), partial(self._synced, node, served))

    def _synced(self, node: int, served: Sequence[Callable[[], None]]) -> None:
        self._syncing.remove(node)
        self._sync(node)
        for go_on in served:
            go_on()


def appended(us: float, nodes: int, node: int) -> Work:
    """Yield the waits of a request that one node answers once it is on the disk."""
    yield Compute(node, us * (OVER_NODES if nodes > 1 else 1.0))
    yield Sync(node)


def transaction(partitions: int, nodes: int, coordinator: int, first: int) -> Work:
    """Yield the waits of a transaction: partitions are led by `first` and the nodes after it."""
    counts = [0] * nodes
    for partition in range(partitions):
        counts[(first + partition) % nodes] += 1
    leading = [node for node in range(nodes) if counts[node]]
    others = [node for node in leading if node != coordinator]
    yield Compute(coordinator, ADD * TRANSACTION_US)
    if others:
        yield Sync(coordinator)  # COMPLETE_* of the last one, and the add.
    yield [_data(node, coordinator, counts[node]) for node in leading]
    yield Compute(coordinator, END * TRANSACTION_US)
    yield Sync(coordinator)  # The decision, and this node's markers.
    if others:
        yield [_markers(node, coordinator) for node in others]


def _data(node: int, coordinator: int, partitions: int) -> Work:
    if node != coordinator:
        yield Compute(coordinator, OTHER_NODE_US / 4)
        yield Compute(node, OTHER_NODE_US / 4)
    yield Compute(node, PRODUCE * TRANSACTION_US * partitions)
    yield Sync(node)


def _markers(node: int, coordinator: int) -> Work:
    yield Compute(node, OTHER_NODE_US / 4)
    yield Sync(node)
    yield Compute(coordinator, OTHER_NODE_US / 4)


def other_nodes(partitions: int, nodes: int) -> float:
    """Return how many nodes besides the coordinator take part in a transaction, on average."""
    leading = min(nodes, partitions)
    return leading - leading / nodes


class Load(NamedTuple):
    """What clients do all the time."""

    name: str
    cpu_us: Callable[[int], float]
    """What one costs all nodes, by how many there are."""
    clients: Callable[[int], int]
    begin: Callable[[int, int, Random], Work]
    """Makes the next operation of a client: of so many nodes, of that number."""
    measured_us: float


def _small(name: str, us: float) -> Load:
    return Load(
        name,
        lambda nodes: us * (OVER_NODES if nodes > 1 else 1.0),
        lambda _: SMALL_CLIENTS,
        lambda nodes, client, _: appended(us, nodes, client % nodes),
        _SHORT_US,
    )


def _transactional(partitions: int) -> Load:
    alone_us = (ADD + partitions * PRODUCE + END) * TRANSACTION_US
    return Load(
        f"transaction over {partitions} partition{'s' * (partitions > 1)}",
        lambda nodes: alone_us + other_nodes(partitions, nodes) * OTHER_NODE_US,
        lambda nodes: PRODUCERS_PER_NODE * nodes,
        lambda nodes, client, random: transaction(
            partitions, nodes, client % nodes, random.randrange(nodes)
        ),
        _LONG_US,
    )


LOADS = (
    _small("Produce of one record", REQUEST_US),
    _small("offset commit", OFFSET_COMMIT_US),
    _transactional(1),
    _transactional(4),
)


def computed(load: Load, nodes: int) -> float:
    """Return the operations per second at which all cores are busy."""
    return nodes * 1e6 / load.cpu_us(nodes)


def simulated(load: Load, nodes: int) -> tuple[float, float]:
    """Return operations per second, and the p50 of how long one takes, ms."""
    random = Random(SEED)
    queues = Queues(nodes, random)
    took_us: list[float] = []

    def begin(client: int) -> None:
        began_us = queues.now_us

        def end() -> None:
            if queues.now_us > _WARM_US:
                took_us.append(queues.now_us - began_us)
            queues.after(NETWORK_US, partial(begin, client))

        queues.carry_out(load.begin(nodes, client, random), end)

    for client in range(load.clients(nodes)):
        queues.after(random.uniform(0, 1000), partial(begin, client))
    queues.run(_WARM_US + load.measured_us)
    return len(took_us) / load.measured_us * 1e6, median(took_us) / 1000


def draw(load: Load) -> str:
    """Return the table of one load."""
    rows = []
    alone = computed(load, 1)
    for nodes in CORES:
        per_s, p50_ms = simulated(load, nodes)
        rate = computed(load, nodes)
        cells = (nodes, f"{rate:,.0f}", f"{rate / alone:.1f}", f"{per_s:,.0f}", f"{p50_ms:.1f}")
        rows.append([str(cell) for cell in cells])
    head = ("cores and nodes", "computed, per s", "times one", "simulated, per s", "p50, ms")
    return table(head, rows)


def drawn(page: str) -> str:
    """Return the page with its tables drawn again."""
    sections = {load.name: partial(draw, load) for load in LOADS}
    return with_sections(page, sections, "tools.scaling --document")


def main() -> None:
    if "--document" in sys.argv[1:]:
        PAGE.write_text(drawn(PAGE.read_text()))
        return
    for load in LOADS:
        print(f"{load.name}\n{draw(load)}\n")


if __name__ == "__main__":
    main()
