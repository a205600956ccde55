"""Members of consumer groups whose last answer was lost, and members that left: both brokers answer
the same, field by field, and the group stands the same afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from compat_tests.admin import await_obeyed, create_topic
from compat_tests.brokers import Broker
from compat_tests.config_frames import GROUP, SET, alter, synonyms
from compat_tests.conftest import MakeName
from compat_tests.consumer_group_frames import ConsumerMember, Partitions
from compat_tests.group_frames import Code
from compat_tests.waiting import eventually

Said = tuple[Any, ...]


class Scene:
    """A group of its own on one broker. Its member `first` may be static."""

    def __init__(
        self, stack: ExitStack, broker: Broker, topic: str, group: str, *, static: bool
    ) -> None:
        self.topic = topic
        instances = ("one" if static else None), None
        self.first, self.second = (
            stack.enter_context(ConsumerMember(broker.bootstrap, group, instance))
            for instance in instances
        )
        #: What `first` had before its last answer.
        self.before: Partitions = {}

    def joined(self) -> None:
        self.first.enter_with(self.topic)

    def asked_to_revoke(self) -> None:
        self.joined()
        self.second.enter_with(self.topic)
        self.before = self.first.assigned
        self.first.beat(owned=self.before)

    def revoked(self) -> None:
        self.asked_to_revoke()
        self.before = self.first.assigned
        self.first.beat(owned=self.before)

    def given_more(self) -> None:
        self.revoked()
        self.second.beat()
        self.second.beat(-1)
        self.first.beat(owned=self.before)

    def given_late(self) -> None:
        """`first` came second, waited, and was given what the other gave back."""
        self.second.enter_with(self.topic)
        self.first.enter_with(self.topic)
        self.second.beat(owned=self.second.assigned)
        self.second.beat(owned=self.second.assigned)
        self.first.beat(owned={})


STAGES = (
    Scene.joined,
    Scene.asked_to_revoke,
    Scene.revoked,
    Scene.given_more,
    Scene.given_late,
)
OWNED: tuple[Callable[[Scene], Partitions | None], ...] = (
    lambda scene: None,
    lambda scene: scene.before,
    lambda scene: scene.first.assigned,
    lambda scene: {topic: each[:1] for topic, each in scene.first.assigned.items()},
    lambda scene: {},
    lambda scene: dict.fromkeys(scene.first.assigned, ()),
    lambda scene: {UUID(int=9): ()},
    lambda scene: dict.fromkeys(scene.first.assigned, (0, 1, 2, 3)),
)


def counted(assignment: Any) -> int:
    return sum(len(each.partitions) for each in assignment.topic_partitions)


def told(answer: Any) -> Said:
    """Return an answer without what differs by chance: ids, and which partitions."""
    return (
        Code(answer.error_code),
        answer.member_id is None,
        answer.member_epoch,
        answer.heartbeat_interval,
        None if answer.assignment is None else counted(answer.assignment),
    )


def standing(member: ConsumerMember) -> Said:
    """Return how the group stands: its state, its epochs, and those of its members."""
    found = member.described()
    members = (
        (
            each.instance_id or "",
            each.member_epoch,
            counted(each.assignment),
            counted(each.target_assignment),
        )
        for each in found.members
    )
    return found.group_state, found.group_epoch, found.assignment_epoch, sorted(members)


@pytest.fixture
def orders(both_brokers: tuple[Broker, Broker], name: MakeName) -> str:
    created = name("orders")
    for broker in both_brokers:
        create_topic(broker.bootstrap, created, 4)
        await_obeyed(broker)
    return created


Play = Callable[[Scene], list[Said]]


@pytest.fixture
def differing(
    both_brokers: tuple[Broker, Broker], orders: str, name: MakeName
) -> Callable[..., list[Any]]:
    """Play on both brokers; return what was said on both if they differ."""

    def compare(play: Play, *, static: bool) -> list[Any]:
        heard = []
        for broker in both_brokers:
            with ExitStack() as stack:
                heard.append(play(Scene(stack, broker, orders, name("group"), static=static)))
        return [] if heard[0] == heard[1] else heard

    return compare


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_an_epoch_whose_answer_may_be_lost_is_answered_alike(
    differing: Callable[..., list[Any]], stage: Callable[[Scene], None], static: bool
) -> None:
    def speak(scene: Scene, epoch: int, owned: Callable[[Scene], Partitions | None]) -> list[Said]:
        stage(scene)
        first, current = scene.first, scene.first.member_epoch
        said = [told(first.beat(epoch, owned=owned(scene))), standing(first)]
        return [*said, told(first.beat(current)), told(first.beat(current, owned={}))]

    for owned in OWNED:
        for epoch in range(1, 6):
            found = differing(partial(speak, epoch=epoch, owned=owned), static=static)
            assert not found, (epoch, OWNED.index(owned))


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_joining_again_and_leaving_are_answered_alike(
    differing: Callable[..., list[Any]], stage: Callable[[Scene], None], static: bool
) -> None:
    def rejoin(scene: Scene) -> list[Said]:
        stage(scene)
        first = scene.first
        return [(told(first.enter_with(scene.topic)), standing(first)) for _ in range(3)]

    def leave(scene: Scene) -> list[Said]:
        stage(scene)
        first, epoch = scene.first, scene.first.member_epoch
        return [(told(first.beat(each)), standing(first)) for each in (-2, epoch, -1, epoch, -1)]

    assert not differing(rejoin, static=static)
    assert not differing(leave, static=static)


def test_the_assignment_interval_does_not_hold_back_the_next_member_of_an_empty_group(
    broker: Broker, name: MakeName
) -> None:
    topic, group, interval = name("orders"), name("group"), "consumer.assignment.interval.ms"
    create_topic(broker.bootstrap, topic, 4)
    assert alter(broker, group, (interval, SET, "15000"), resource_type=GROUP) == 0
    # Kafka shows it after its answer, and its coordinator obeys later.
    eventually(lambda: synonyms(broker, GROUP, group, interval)[0][1] == "15000")
    await_obeyed(broker)
    with ExitStack() as stack:
        scene = Scene(stack, broker, topic, group, static=False)
        scene.joined()
        scene.first.beat(-1)
        assert standing(scene.first) == ("Empty", 3, 3, [])
        assert scene.second.enter_with(topic).member_epoch == 4
        assert standing(scene.second) == ("Stable", 4, 4, [("", 4, 4, 4)])
