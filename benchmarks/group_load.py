"""Consumer groups under load: joins, rebalances, heartbeats, commits, starts with many offsets.

Frames of our own, one connection per member. "Broker time" of a join is what its client waits for
the two answers, the broker being otherwise idle.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

from benchmarks.frames import NOT_YET, Frames, eventually, framed
from benchmarks.subjects import cpu_seconds
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from wire.internal.consumer_protocol import ConsumerProtocolSubscription
from wire.internal.versioned import encode_versioned
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

#: What the broker runs with: Kafka's own delay of 3 s would be all that is seen.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
#: JoinGroup and SyncGroup before member ids, heartbeats and commits of today.
_JOIN, _SYNC, _HEARTBEAT, _COMMIT, _FETCH = 3, 3, 4, 9, 9
_TOPIC = "orders"
_PARTITIONS = 10
_SUBSCRIBED = encode_versioned(ConsumerProtocolSubscription(topics=[_TOPIC]), 1)
_SETTLE_S = 0.5


class Member:
    """A member over a connection of its own."""

    def __init__(self, bootstrap: str, group_id: str) -> None:
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.frames = Frames(bootstrap)

    def send_join(self) -> None:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIBED)],
        )
        self.frames.send(_JOIN, request)

    def joined(self) -> Any:
        answer = self.frames.receive(JoinGroupResponse, _JOIN)
        assert answer.error_code == 0, answer.error_code
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        return answer

    def send_sync(self, members: Sequence[Any] = ()) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"x" * 50)
                for each in members
            ],
        )
        self.frames.send(_SYNC, request)

    def synced(self) -> None:
        answer = self.frames.receive(SyncGroupResponse, _SYNC)
        assert answer.error_code == 0, answer.error_code

    def heartbeat(self) -> bytes:
        """Return the frame of a heartbeat."""
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )
        return framed(request, _HEARTBEAT)


def measure(broker: Broker, *, seconds: int, committed: int) -> dict[Row, float]:
    """Every figure of groups; `seconds` of heartbeats and commits each, `committed` offsets."""
    create_topic(broker.bootstrap, _TOPIC, _PARTITIONS)
    _await_coordinators(broker)
    return {
        **_joins(broker, 200),
        **_rebalances(broker, 50, 20),
        **_heartbeats(broker, groups=100, members=10, seconds=seconds),
        **_commits(broker, 50, seconds),
        **_start(broker, committed),
    }


def _await_coordinators(broker: Broker) -> None:
    """Return when every partition of `__consumer_offsets` is led, and read to its end."""
    with Frames(broker.bootstrap) as connection:
        finding = FindCoordinatorRequest(key="any", key_type=0)
        eventually(
            lambda: connection.call(finding, FindCoordinatorResponse, 2).error_code, "coordinator"
        )
        for number in range(400):
            asked = HeartbeatRequest(group_id=f"any-{number}", member_id="unknown")
            deadline = time.monotonic() + TIMEOUT_S
            while connection.call(asked, HeartbeatResponse, _HEARTBEAT).error_code in NOT_YET:
                assert time.monotonic() < deadline, f"no coordinator of any-{number}"
                time.sleep(0.01)


def _joins(broker: Broker, count: int) -> dict[Row, float]:
    took = []
    for number in range(count):
        with ExitStack() as stack:
            member = _member(stack, broker, f"join-{number}")
            began_at = time.perf_counter()
            member.send_join()
            members = member.joined().members
            member.send_sync(members)
            member.synced()
            took.append((time.perf_counter() - began_at) * 1000)
    return {
        Row("a group's first member joins and has its assignment, p50", "ms", False): median(took),
        Row("a group's first member joins and has its assignment, p99", "ms", False): quantiles(
            took, n=100
        )[98],
    }


def _rebalances(broker: Broker, size: int, rounds: int) -> dict[Row, float]:
    took = []
    with ExitStack() as stack:
        members = [_member(stack, broker, "rebalance") for _ in range(size)]
        _form([members])
        leader = members[0]
        for _ in range(rounds):
            began_at = time.perf_counter()
            leader.send_join()
            for member in members[1:]:
                _told_to_rejoin(member)
            for member in members[1:]:
                member.send_join()
            _assign(members)
            took.append((time.perf_counter() - began_at) * 1000)
    return {
        Row(f"rebalance of {size} members, p50", "ms", False): median(took),
        Row(f"rebalance of {size} members, longest", "ms", False): max(took),
    }


def _heartbeats(broker: Broker, *, groups: int, members: int, seconds: int) -> dict[Row, float]:
    """Every member once a second, evenly spread."""
    with ExitStack() as stack:
        formed = [
            [_member(stack, broker, f"heartbeat-{number}") for _ in range(members)]
            for number in range(groups)
        ]
        _form(formed)
        everyone = [member for group in formed for member in group]
        frames = [member.heartbeat() for member in everyone]
        cpu_before, began_at = cpu_seconds(broker.pid), time.perf_counter()
        for sent in range(seconds * len(everyone)):
            due_at = began_at + sent / len(everyone)
            if (ahead_s := due_at - time.perf_counter()) > 0.005:
                time.sleep(ahead_s)
            index = sent % len(everyone)
            everyone[index].frames.send_bytes(frames[index])
            answer = everyone[index].frames.receive(HeartbeatResponse, _HEARTBEAT)
            assert answer.error_code == 0, answer.error_code
        took_s = time.perf_counter() - began_at
        cpu = (cpu_seconds(broker.pid) - cpu_before) / took_s * 100
    row = Row(f"{groups * members} members heartbeat each second: CPU", "% of a core", False)
    return {row: cpu}


def _commits(broker: Broker, consumers: int, seconds: int) -> dict[Row, float]:
    """Each consumer commits one offset, and again when that is answered."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in range(consumers):
            frames = stack.enter_context(Frames(broker.bootstrap))
            selector.register(frames, selectors.EVENT_READ, _commit(f"commit-{number}", [0]))
            frames.send_bytes(_commit(f"commit-{number}", [0]))
        answered, cpu_before, began_at = 0, cpu_seconds(broker.pid), time.perf_counter()
        while time.perf_counter() < began_at + seconds:
            for key, _ in selector.select(TIMEOUT_S):
                assert isinstance(key.fileobj, Frames)
                _committed(key.fileobj)
                key.fileobj.send_bytes(key.data)
                answered += 1
        took_s = time.perf_counter() - began_at
        cpu_s = cpu_seconds(broker.pid) - cpu_before
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, Frames)
            _committed(key.fileobj)
    return {
        Row(f"{consumers} consumers commit an offset each", "per s", True): answered / took_s,
        Row("broker CPU for 1 000 of these commits", "ms", False): cpu_s / answered * 1e6,
    }


def _start(broker: Broker, committed: int) -> dict[Row, float]:
    """Kill it with so many offsets committed; time from the start to a first one fetched."""
    groups = committed // _PARTITIONS
    with ExitStack() as stack:
        connections = [stack.enter_context(Frames(broker.bootstrap)) for _ in range(20)]
        for first in range(0, groups, len(connections)):
            every = connections[: groups - first]
            for number, connection in enumerate(every):
                connection.send_bytes(_commit(f"start-{first + number}", range(_PARTITIONS)))
            for connection in every:
                _committed(connection)
    broker.kill()
    began_at = time.perf_counter()
    broker.spawn()
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="start-7", topics=None)])
    while not _fetched(broker, asked):
        assert time.perf_counter() < began_at + 2 * TIMEOUT_S, broker.output()
        time.sleep(0.01)
    took_s = time.perf_counter() - began_at
    return {Row(f"start to a first of {committed:,} offsets fetched", "s", False): took_s}


def _fetched(broker: Broker, request: OffsetFetchRequest) -> bool:
    """Return whether the broker is there and has the offsets."""
    try:
        with Frames(broker.bootstrap) as connection:
            (group,) = connection.call(request, OffsetFetchResponse, _FETCH).groups
    except OSError:
        return False
    return group.error_code == 0 and len(group.topics) == 1


def _member(stack: ExitStack, broker: Broker, group_id: str) -> Member:
    member = Member(broker.bootstrap, group_id)
    stack.enter_context(member.frames)
    return member


def _form(groups: Sequence[Sequence[Member]]) -> None:
    """Bring each group to a stable generation; its first member leads it."""
    for group in groups:
        group[0].send_join()
    for group in groups:
        group[0].joined()
        for member in group[1:]:
            member.send_join()
    time.sleep(_SETTLE_S)  # A generation is formed of those that have come.
    for group in groups:
        group[0].send_join()
    for group in groups:
        _assign(group)


def _assign(members: Sequence[Member]) -> None:
    """Read the answers to the joins that were sent, and let the leader assign."""
    answers = [member.joined() for member in members]
    leader = next(answer for answer in answers if answer.members)
    assert len(leader.members) == len(members)
    for member, answer in zip(members, answers, strict=True):
        member.send_sync(answer.members)
    for member in members:
        member.synced()


def _told_to_rejoin(member: Member) -> None:
    """A member learns of a rebalance from its heartbeat."""
    member.frames.send_bytes(member.heartbeat())
    member.frames.receive(HeartbeatResponse, _HEARTBEAT)


def _commit(group_id: str, partitions: Sequence[int]) -> bytes:
    """Return the frame that commits an offset for each partition."""
    places = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1_000)
        for index in partitions
    ]
    topic = OffsetCommitRequestTopic(name=_TOPIC, partitions=places)
    return framed(OffsetCommitRequest(group_id=group_id, topics=[topic]), _COMMIT)


def _committed(connection: Frames) -> None:
    answer = connection.receive(OffsetCommitResponse, _COMMIT)
    assert all(not each.error_code for each in answer.topics[0].partitions), answer
