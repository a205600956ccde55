"""Random histories of a group whose members change protocols: both kinds of group, and back.

Clients of both protocols join, are slow, lose answers, leave, come back, also as the other kind.
After each step the shard is replayed and compared, no two clients own a partition, and no member
is without a deadline. When nothing happens any more, each partition is read by one of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from coordinator.groups.classic.group import ClassicGroup, GroupLimits, GroupState
from coordinator.groups.classic.requests import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from coordinator.groups.consumer.consumer_protocol import (
    read_assignments,
    read_subscription,
    write_assignment,
)
from coordinator.groups.consumer.group import ConsumerGroup
from coordinator.groups.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from coordinator.groups.consumer.timers import MemberTimer
from coordinator.groups.shard import GroupShard
from magnetar.broker import Broker
from magnetar.runtime.group_shards import RECORD_FORMAT, RunningGroupShard
from magnetar.runtime.topic_image import BrokerTopics
from tests.coordinator.groups.consumer_world import check_owners, subscription
from tests.soak import SOAK
from wire.error_code import ErrorCode
from wire.errors import KafkaError

_HISTORIES = 60 * SOAK
_STEPS = 40
_TOPICS = {"orders": 3, "audit": 2}
_GONE = {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID}
_PROTOCOLS = ("range", "roundrobin")
_CONNECTION: Any = SimpleNamespace(is_closing=False)
Place = tuple[str, int]


@dataclass
class Client:
    """What one client believes. `told` is what a consumer has to do yet."""

    names: frozenset[str]
    is_classic: bool
    instance_id: str | None
    member_id: str = ""
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    told: set[Place] | None = None
    is_unsure: bool = False
    is_away: bool = False
    prefers: tuple[str, ...] = _PROTOCOLS
    #: A classic member's parked request, and what it does next.
    asked: asyncio.Task[Any] | None = None
    phase: str = "join"
    joined: JoinAnswer | None = None

    def begin_anew(self) -> None:
        self.owned, self.told, self.epoch = set(), None, 0
        self.phase, self.joined = "join", None


class History:
    """One random history."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker, self.groups = broker, broker.groups
        self.topics = BrokerTopics(broker.topics)
        self.group_id = f"group-{seed}"
        self.clients: list[Client] = []
        self.made = 0
        self.loses_answers = True
        self.checked_end = -1

    async def run(self) -> None:
        for _ in range(_STEPS):
            await self.random.choices(*zip(*_EVENTS, strict=True))[0](self)
            await self.check()
        await self.come_to_rest()

    async def come_to_rest(self) -> None:
        self.loses_answers = False
        for client in [each for each in self.clients if each.is_away]:
            await self.give_up(client)
        for _ in range(30):
            await self.remove_ghosts()
            for client in list(self.clients):
                await self.speak(client)
                await self.check()
        wanted = {
            (name, partition)
            for client in self.clients
            for name in client.names
            for partition in range(_TOPICS[name])
        }
        assert {place for client in self.clients for place in client.owned} == wanted
        for client in list(self.clients):
            await self.give_up(client)

    async def remove_ghosts(self) -> None:
        """The sessions of members run out of which no client knows that it is one."""
        known = {client.member_id for client in self.clients}
        known |= {self.static_member(each.instance_id) for each in self.clients if each.asked}
        group = self.group
        ghosts = [] if group is None else [each for each in group.members if each not in known]
        if ghosts:
            await self.groups.leave(self.group_id, [LeavingMember(each) for each in ghosts])

    @property
    def group(self) -> ClassicGroup | ConsumerGroup | None:
        state = self.groups.shards.of(self.group_id).state
        return state.consumer_groups.get(self.group_id) or state.groups.get(self.group_id)

    def static_member(self, instance_id: str | None) -> str:
        group = self.group
        return "" if group is None else group.static_members.get(instance_id or "", "")

    # --- what must hold

    async def check(self) -> None:
        # The handlers of parked requests hear their answers.
        for _ in range(4):
            await asyncio.sleep(0)
        owners: dict[Place, str] = {}
        for client in self.clients:
            for place in client.owned:
                assert place not in owners, f"{place}: {owners[place]} and {client.member_id}"
                owners[place] = client.member_id
        shard = self.groups.shards.of(self.group_id)
        self.check_deadlines(shard.state)
        if shard.log.log_end_offset == self.checked_end:
            return
        self.checked_end = shard.log.log_end_offset
        replayed = RunningGroupShard(shard.log, GroupShard(GroupLimits()), RECORD_FORMAT)
        replayed.replay()
        self.check_same(shard.state, replayed.state)

    def check_same(self, live: GroupShard, replayed: GroupShard) -> None:
        all_groups: list[ClassicGroup | ConsumerGroup] = [
            *live.groups.values(),
            *live.consumer_groups.values(),
        ]
        assert sum(group.member_bytes for group in all_groups) == live.members.size_bytes
        mine, log = (each.consumer_groups.get(self.group_id) for each in (live, replayed))
        if mine is None:
            assert log is None
        else:
            assert log is not None
            assert self.group_id not in live.groups
            check_owners(mine)
            for name, value in vars(mine).items():
                assert name == "revision" or getattr(log, name) == value, name
        classic, stored = live.groups.get(self.group_id), replayed.groups.get(self.group_id)
        if classic is None:
            assert stored is None
        elif classic.state in (GroupState.STABLE, GroupState.EMPTY) and classic.generation_id:
            assert stored is not None
            assert _kept(stored) == _kept(classic)

    def check_deadlines(self, live: GroupShard) -> None:
        """No member is waited for without an end."""
        classic = live.groups.get(self.group_id)
        if classic is not None and classic.members:
            assert classic.deadline_ms is not None
            if classic.state is GroupState.PREPARING_REBALANCE:
                assert classic.join_deadline_ms is not None
        group = live.consumer_groups.get(self.group_id)
        if group is None:
            return
        deadlines = live.soft_states[self.group_id].timers._deadlines
        assert deadlines[MemberTimer.SESSION].keys() == group.members.keys()
        for member_id, member in group.members.items():
            if member.revoking and member.classic is None:
                assert member_id in deadlines[MemberTimer.REVOCATION]

    # --- events

    async def join(self) -> None:
        if len(self.clients) >= 5:
            return
        instance_id = self.random.choice([None, "one", "two"])
        if any(each.instance_id == instance_id for each in self.clients):
            instance_id = None
        names = frozenset(self.random.sample(sorted(_TOPICS), self.random.randint(1, 2)))
        client = Client(names, self.random.random() < 0.6, instance_id)
        self.clients.append(client)
        self.become(client)
        await self.speak(client)

    def become(self, client: Client) -> None:
        """The client starts, with its protocol."""
        client.begin_anew()
        client.is_away = client.is_unsure = False
        self.made += 1
        client.member_id = "" if client.is_classic else f"m{self.made}"
        client.prefers = _PROTOCOLS if self.random.random() < 0.9 else _PROTOCOLS[::-1]

    async def beat(self) -> None:
        client = self.some(away=False)
        if client is not None:
            await self.speak(client)

    async def leave(self) -> None:
        client = self.some(away=False)
        if client is None or client.asked is not None:
            return
        if client.instance_id is None or self.random.random() < 0.3:
            await self.give_up(client)
        elif client.is_classic:
            # It stops without a word.
            client.begin_anew()
            client.is_away = True
        elif await self.is_taken(client, self.heartbeat(client, -2)):
            client.begin_anew()
            client.is_away = True

    async def come_back(self) -> None:
        """A static client starts again, perhaps with the other protocol."""
        client = self.some(away=True)
        if client is not None:
            client.is_classic = self.random.random() < 0.6
            self.become(client)
            await self.speak(client)

    async def change_protocol(self) -> None:
        """A static client starts again at once, with the other protocol."""
        client = self.some(away=False)
        if client is None or client.asked is not None or client.instance_id is None:
            return
        if client.is_classic or await self.is_taken(client, self.heartbeat(client, -2)):
            client.is_classic = not client.is_classic
            self.become(client)
            await self.speak(client)

    async def give_up(self, client: Client) -> None:
        """The client is gone, and its session runs out."""
        if client.asked is not None:
            client.asked.cancel()
        self.clients.remove(client)
        if member_id := self.static_member(client.instance_id) or client.member_id:
            await self.groups.leave(self.group_id, [LeavingMember(member_id)])

    # --- a client's request

    async def speak(self, client: Client) -> None:
        if client.is_classic:
            await self.speak_classic(client)
        else:
            if client.told is not None and (not self.loses_answers or self.random.random() < 0.5):
                client.owned, client.told = client.told, None
            await self.is_taken(client, self.speak_consumer(client))

    async def is_taken(self, client: Client, request: Awaitable[Any]) -> bool:
        try:
            await request
        except KafkaError as refusal:
            self.on_refusal(client, refusal.code)
            return False
        return True

    def heartbeat(
        self, client: Client, epoch: int, **said: Any
    ) -> Coroutine[Any, Any, HeartbeatAnswer]:
        request = HeartbeatRequest(
            group_id=self.group_id,
            member_id=client.member_id,
            member_epoch=epoch,
            instance_id=client.instance_id,
            **said,
        )
        return self.groups.consumer.heartbeat(request, 1, lambda _: True)

    def on_refusal(self, client: Client, code: ErrorCode) -> None:
        assert code in _GONE | {
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.GROUP_ID_NOT_FOUND,
        }, code
        client.begin_anew()
        if code in _GONE:
            self.clients.remove(client)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID and client.is_classic:
            client.member_id = ""

    async def speak_consumer(self, client: Client) -> None:
        said: dict[str, Any] = {}
        if client.epoch == 0 or client.is_unsure:
            said = {"topic_names": client.names, "rebalance_timeout_ms": 60_000}
        if said or client.told is None:
            said["owned"] = self.as_ids(client.owned)
        answer = await self.heartbeat(client, client.epoch, **said)
        client.is_unsure = self.loses_answers and self.random.random() < 0.2
        if client.is_unsure:
            return
        client.epoch = answer.member_epoch
        if answer.assignment is not None:
            client.told = self.places(answer.assignment)
            if client.told == client.owned:
                client.told = None

    async def speak_classic(self, client: Client) -> None:
        """Do what a consumer with an eager assignor does next."""
        if client.asked is not None:
            if client.asked.done():
                asked, client.asked = client.asked, None
                if await self.is_taken(client, asked):
                    self.on_answer(client, asked.result())
        elif client.phase != "stable":
            request = self.joins(client) if client.phase == "join" else self.syncs(client)
            client.asked = asyncio.ensure_future(request)
        else:
            said = (client.member_id, client.epoch, client.instance_id)
            try:
                self.groups.heartbeat(self.group_id, *said)
            except KafkaError as refusal:
                self.on_refusal(client, refusal.code)

    def on_answer(self, client: Client, answer: JoinAnswer | SyncAnswer) -> None:
        if answer.error_code is ErrorCode.MEMBER_ID_REQUIRED and isinstance(answer, JoinAnswer):
            client.member_id = answer.member_id
        elif answer.error_code is not ErrorCode.NONE:
            self.on_refusal(client, answer.error_code)
        elif isinstance(answer, JoinAnswer):
            client.joined, client.member_id = answer, answer.member_id
            client.epoch, client.phase = answer.generation_id, "sync"
        else:
            (given,) = read_assignments([answer.assignment], self.topics)
            client.owned, client.phase = self.places(given), "stable"

    def joins(self, client: Client) -> Coroutine[Any, Any, JoinAnswer]:
        self.made += 1
        request = JoinRequest(
            member_id=client.member_id,
            new_member_id=f"c{self.made}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=tuple((name, subscription(client.names)) for name in client.prefers),
            group_instance_id=client.instance_id,
            must_know_its_id=True,
            can_skip_assignment=True,
        )
        return self.groups.join(self.group_id, request, _CONNECTION)

    def syncs(self, client: Client) -> Coroutine[Any, Any, SyncAnswer]:
        joined = client.joined
        assert joined is not None
        assignments: dict[str, bytes] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self.assigned_by_leader(joined)
        request = SyncRequest(
            member_id=client.member_id,
            generation_id=client.epoch,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        return self.groups.sync(self.group_id, request, _CONNECTION)

    def assigned_by_leader(self, joined: JoinAnswer) -> dict[str, bytes]:
        given: dict[str, set[Place]] = {member.member_id: set() for member in joined.members}
        for name, count in _TOPICS.items():
            readers = [
                member.member_id
                for member in joined.members
                if name in read_subscription(member.metadata, self.topics).topic_names
            ]
            for partition in range(count if readers else 0):
                given[readers[partition % len(readers)]].add((name, partition))
        return {
            member_id: write_assignment(self.as_ids(places), subscription([]), self.topics)
            for member_id, places in given.items()
        }

    # ---

    def some(self, *, away: bool) -> Client | None:
        found = [client for client in self.clients if client.is_away is away]
        return self.random.choice(found) if found else None

    def as_ids(self, places: set[Place]) -> dict[UUID, frozenset[int]]:
        ids: dict[UUID, frozenset[int]] = {}
        for name, partition in places:
            topic = self.topics.by_name(name)
            assert topic is not None
            ids[topic.topic_id] = ids.get(topic.topic_id, frozenset()) | {partition}
        return ids

    def places(self, assigned: Mapping[UUID, Iterable[int]]) -> set[Place]:
        found = set()
        for topic_id, partitions in assigned.items():
            topic = self.topics.by_id(topic_id)
            assert topic is not None
            found |= {(topic.name, partition) for partition in partitions}
        return found


def _kept(group: ClassicGroup) -> dict[str, Any]:
    """Return what the log has of a group at rest."""
    return {
        "generation": (group.state, group.generation_id, group.protocol_name, group.leader),
        "type": group.protocol_type,
        "static": group.static_members,
        "members": {
            member.member_id: (
                member.group_instance_id,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        },
    }


_EVENTS = [
    (History.beat, 60),
    (History.join, 8),
    (History.leave, 5),
    (History.come_back, 5),
    (History.change_protocol, 10),
]


@pytest.mark.parametrize("first", range(0, _HISTORIES, 20))
async def test_each_partition_is_read_by_one_whatever_its_members_speak(
    start_broker: Any, first: int
) -> None:
    # A group's shard has few other groups.
    broker = await start_broker({"offsets.topic.num.partitions": "50"})
    for name, count in _TOPICS.items():
        broker.topics.create(name, count)
    for seed in range(first, first + 20):
        try:
            await History(broker, seed).run()
        except (AssertionError, LookupError, TypeError) as failure:
            raise AssertionError(f"history of seed {seed}") from failure
