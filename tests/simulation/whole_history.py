"""One history of the whole broker: clients at work, everything going wrong, then the verdict.

A seed is a history, bit for bit, in a process whose hash seed is fixed (`tests.simulation.run`).
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from coordinator.groups.offsets.committed import OffsetKey
from coordinator.transactions.metadata import TopicPartition
from logstore.disk.durability import Durability
from tests.simulation import access
from tests.simulation.ailments import RESERVE_BYTES, Ailments
from tests.simulation.backups import Backups
from tests.simulation.checker import judge
from tests.simulation.clients.administrator import TopicMaker, Trimmer
from tests.simulation.clients.connection import Connection, Login
from tests.simulation.clients.group_member import ClassicMember, ConsumerMember
from tests.simulation.clients.guest import Guest
from tests.simulation.clients.idempotent_producer import IdempotentProducer
from tests.simulation.clients.intruder import Intruder, Prey
from tests.simulation.clients.reached import ReachedByFrames
from tests.simulation.clients.reader import Reader
from tests.simulation.clients.topics import create_topics
from tests.simulation.clients.warden import Warden
from tests.simulation.compacted import uncompacted
from tests.simulation.damage import (
    false_alarms,
    partitions_of,
    tells_of_starts,
    told_of,
    unexcused,
    unexcused_failures,
)
from tests.simulation.ending import (
    all_partitions,
    committed_values,
    extent_of,
    name_of_last_reader,
    read_all,
)
from tests.simulation.history import check_seen
from tests.simulation.nemesis import Nemesis
from tests.simulation.observations import Observations
from tests.simulation.planted_faults import AILING, SECURED, check_plant, family_of, planted
from tests.simulation.workers import TARGETS, TIMEOUT_MS, Worker
from tests.simulation.world.entropy import seeded_entropy
from tests.simulation.world.log_lines import LogLines, recorded_logs
from tests.simulation.world.machine import HEALING_INTERVAL_MS, Machine
from tests.simulation.world.network import Network
from tests.simulation.world.pace import simulated_pace
from tests.simulation.world.process import Process, Scheduler

#: Topics, how many partitions they have, and their settings.
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "a": (2, {}),
    "b": (2, {}),
    "in": (4, {}),
    "plain": (2, {}),
    "trimmed": (1, {}),
    "compact": (
        1,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1000",
        },
    ),
    "short": (1, {"retention.bytes": "6000"}),
}
#: Who else there is where clients log in.
GUESTS, INTRUDERS = ("guest0", "guest1", "guest2"), ("intruder0", "intruder1")
GUARDED = TopicPartition(access.GUARDED, 0)
#: Topics whose records go by themselves.
KEPT = {"compact": "compact", "short": "retained"}
RAGE_S = 4.0


class Client(Protocol):
    """A client that works until it is told to end."""

    is_ending: bool

    async def run(self) -> None: ...


class Verdict(NamedTuple):
    """What came of a history."""

    seed: int
    witnesses: list[str]
    trace_hash: str
    #: Acknowledged records, committed transactions, fetches, brokers: that there was a history.
    extent: tuple[int, ...]


@dataclass
class _Whole:
    """The parts of one history."""

    seed: int
    #: AILING: the disk fails, fills and rots. SECURED: clients log in, and some try to get in.
    family: str = ""
    observations: Observations = field(default_factory=Observations)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.random_of("scheduler"))
        self.network = Network(self.random_of("network"))
        choice = self.random_of("durability").random()
        durability = Durability.PAGE_CACHE if choice < 0.1 else Durability.FSYNC
        ailing = self.random_of("ailments")
        self.ailments = Ailments(ailing) if self.family == AILING else None
        settings = {"log.dir.reserve.bytes": str(RESERVE_BYTES)} if self.family == AILING else {}
        self.topics = dict(TOPICS)
        self.warden: Warden | None = None
        if self.family == SECURED:
            settings = access.SETTINGS
            self.topics[access.GUARDED] = (access.GUARDED_PARTITIONS, {})
        self.machine = Machine(
            self.scheduler, self.network, self.random_of("machine"), durability, settings
        )
        self.process = Process(self.scheduler, self.random_of("clients"))
        #: On a disk that ails it would be the operator who fails.
        self.backups = None if self.ailments else Backups("scratch", self.random_of("backups"))
        self.nemesis = Nemesis(
            self.machine, self.network, self.random_of("nemesis"), self.ailments, self.backups
        )
        self.log = LogLines()
        self._connections: list[Connection] = []

    def random_of(self, concern: str) -> Random:
        """Return the chance of one concern, so that one does not disturb another."""
        return Random(f"{self.seed} {concern}")

    def connect(
        self, name: str, *, may_arrive_late: bool = True, login: Login | None = access.APP
    ) -> Connection:
        """Return a connection that begins with this login, where clients log in."""
        connection = Connection(
            self.network,
            self.process,
            name,
            may_arrive_late=may_arrive_late,
            login=login if self.family == SECURED else None,
        )
        self._connections.append(connection)
        return connection

    def clients(self) -> list[Client]:
        """Return the clients of this history, of every kind."""
        random = self.random_of("kinds")
        written = [TopicPartition("plain", index) for index in range(2)]
        written += [TopicPartition(name, 0) for name in ("trimmed", "compact", "short")]
        made: list[Client] = []
        if self.family == SECURED:
            written.append(GUARDED)
            made.append(self._producer("producer of what is guarded", GUARDED))
        for index in range(random.randint(1, 3)):
            made.append(self._worker(f"worker{index}", random))
        for index in range(random.randint(2, 4)):
            made.append(self._producer(f"producer{index}", random.choice(written)))
        for is_committed in (False, True):
            name = f"reader{'-committed' if is_committed else ''}"
            made.append(self._reader(name, [*written, *TARGETS], is_committed=is_committed))
        kind = random.choice((ClassicMember, ConsumerMember))
        for index in range(random.choice((0, 2, 3, 3))):
            name = f"member{index}"
            made.append(
                kind(
                    name,
                    "group",
                    self.connect(name),
                    written,
                    self.observations,
                    self.random_of(name),
                )
            )
        return [*made, *self._administrators()]

    def _administrators(self) -> list[Client]:
        return [
            Trimmer(
                self.connect("trimmer"),
                TopicPartition("trimmed", 0),
                self.observations,
                self.random_of("trimmer"),
            ),
            TopicMaker(
                "scratch", self.connect("maker"), self.observations, self.random_of("maker")
            ),
        ]

    def _producer(self, name: str, partition: TopicPartition) -> IdempotentProducer:
        return IdempotentProducer(
            name,
            self.connect(name),
            partition,
            self.observations,
            self.random_of(name),
            has_tombstones=partition.topic == "compact",
            may_begin_late=self.ailments is not None,
        )

    def _reader(self, name: str, partitions: list[TopicPartition], *, is_committed: bool) -> Reader:
        return Reader(
            name,
            self.connect(name),
            partitions,
            self.observations,
            self.random_of(name),
            is_committed=is_committed,
        )

    def _worker(self, name: str, random: Random) -> Worker:
        reached = ReachedByFrames(self.machine, self.connect(name, may_arrive_late=False))
        number = random.randrange(2)
        return Worker(
            reached,
            self.observations.history,
            self.random_of(name),
            name,
            f"tx{number}",
            OffsetKey(f"g{number}", "in", number),
            is_v2=random.random() < 0.5,
        )

    async def _guarded(self) -> list[Client]:
        """Give everyone the rights that a client needs; return those who want more."""
        if self.warden is None:
            return []
        await self.warden.fill()
        topics = await self.warden.topics()
        made: list[Client] = [self.warden]
        for name in GUESTS:
            connection = self.connect(name, login=access.GUEST)
            topic_id, random = topics[access.GUARDED], self.random_of(name)
            made.append(
                Guest(name, connection, self.warden.rights, topic_id, self.observations, random)
            )
        for name in INTRUDERS:
            connect = partial(self.connect, name, login=None)
            made.append(Intruder(connect, Prey(topics), self.observations, self.random_of(name)))
        return made

    async def story(self) -> None:
        await self.nemesis.revive()
        if self.family == SECURED:
            connection = self.connect("warden", may_arrive_late=False, login=access.ADMIN)
            self.warden = Warden(connection, access.Rights(), self.random_of("warden"))
            await self.warden.prepare()
        await create_topics(self.connect("setup"), self.topics)
        clients = [*self.clients(), *await self._guarded()]
        tasks = [asyncio.ensure_future(client.run()) for client in clients]
        await self.nemesis.rage(RAGE_S)
        for client in clients:
            client.is_ending = True
        if self.nemesis.random.random() < 0.5:
            await self.nemesis.strike_down()
            # What is open now is ended by no client any more.
            for client, task in zip(clients, tasks, strict=True):
                if isinstance(client, Worker):
                    task.cancel()
            await self.nemesis.revive()
        await _ended(tasks)
        # The last timeout, the last delayed request and its own; then a sweep.
        await asyncio.sleep((2 * TIMEOUT_MS + 2 * HEALING_INTERVAL_MS) / 1000 + 4)
        if self.nemesis.random.random() < 0.5:
            await self.nemesis.restart()
        for is_committed in (False, True):
            await self._read_all(is_committed)
        if self.warden is not None:
            self.observations.topics = set(await self.warden.topics())

    async def _read_all(self, is_committed: bool) -> None:
        counts = {name: count for name, (count, _) in self.topics.items()}
        name = name_of_last_reader(is_committed=is_committed)
        reader = self._reader(name, all_partitions(counts), is_committed=is_committed)
        await read_all([reader], counts, self.observations, is_committed=is_committed)

    def verdict(self) -> Verdict:
        observations = self.observations
        committed = committed_values(observations)
        broker = self.machine.broker
        witnesses = [
            *judge(observations, KEPT),
            *(check_seen(observations.history, broker, committed) if broker and committed else ()),
            *(found for each in self._connections for found in each.witnesses),
            *(f"failed: {failure!r}" for failure in self._failures()),
            # No client of a history sends what is no request.
            *(f"protocol: a connection closed: {reason}" for reason in self._refused_streams()),
            *access.effects(observations, {*self.topics, "scratch"}),
        ]
        if self.ailments is None:
            put_back_count = self.backups.put_back_count if self.backups else 0
            witnesses += false_alarms(self.log.lines, put_back_count)
            witnesses += uncompacted(broker) if broker and committed else ()
        else:
            damaged = partitions_of(self.machine.disk.media.damaged)
            lines = self.log.lines
            witnesses = unexcused(
                witnesses, told_of(lines), damaged, has_lost_starts=tells_of_starts(lines)
            )
        return Verdict(
            self.seed,
            witnesses,
            self.network.trace_hash,
            extent_of(observations, self.machine.incarnations),
        )

    def _refused_streams(self) -> list[str]:
        expected = access.CLOSED if self.family == SECURED else ()
        return [each for each in self.log.refused_streams() if not each.startswith(expected)]

    def _failures(self) -> list[BaseException]:
        failures = self.machine.failures
        return list(unexcused_failures(failures)) if self.ailments is not None else failures


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Return when all have ended. Raises what one of them has raised."""
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def tell(seed: int, plant: str = "", family: str = "") -> Verdict:
    """Return what came of the history of this seed, with the fault of that name planted."""
    whole = _Whole(seed, family or family_of(plant))
    entropy = seeded_entropy(whole.random_of("entropy"))
    with recorded_logs(whole.log), planted(plant), entropy, simulated_pace():
        try:
            whole.scheduler.run(whole.process, whole.story())
        except Exception:
            whole.observations.witnesses.append(f"stuck: {traceback.format_exc()}")
        if plant:
            check_plant((*whole.machine.failures, *whole.log.errors()))
        verdict = whole.verdict()
        whole.scheduler.end()
    whole.scheduler.graveyard.append(whole)
    return verdict


def warm_up() -> None:
    """Import and compile what histories need, so that processes can be copied from this one."""
    tell(0)
