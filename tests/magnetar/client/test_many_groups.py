"""Questions about all groups: few requests, and groups that end while they are asked about."""

from __future__ import annotations

import pytest

from magnetar.client.activity import look
from magnetar.client.groups import NoSuchGroup, describe_groups, known_groups, positions_of
from tests.magnetar.console.fake_cluster import FakeClient, Group, World


def world_of(groups: int) -> World:
    world = World(nodes=(1, 2, 3))
    world.partition("orders").write(b"a", b"b")
    for number in range(groups):
        committed = {("orders", 0): number % 2, ("gone", 0): 7}
        world.groups[f"group-{number}"] = Group(committed=committed)
    return world


def requests_of_all_groups(groups: int) -> int:
    world = world_of(groups)
    client = FakeClient(world)
    seen = look(client)
    assert len(seen.committed) == groups
    described = describe_groups(client, list(world.groups))
    lags = [[each.lag for each in found] for found in positions_of(client, described)]
    # A topic that is gone has no end.
    assert lags == [[-1, 2 - number % 2] for number in range(groups)]
    return len(world.asked)


def test_a_look_at_many_groups_takes_as_many_requests_as_at_one() -> None:
    assert requests_of_all_groups(200) == requests_of_all_groups(1)


def test_a_coordinator_that_loads_one_of_the_groups_is_asked_again() -> None:
    world = world_of(3)
    world.groups["group-1"].loading = 1
    assert look(FakeClient(world)).committed.keys() == world.groups.keys()


def test_groups_that_have_ended_are_left_out_or_told() -> None:
    client = FakeClient(world_of(1))
    assert known_groups(client, ["group-0", "ended"]).keys() == {"group-0"}
    with pytest.raises(NoSuchGroup, match="no group 'ended'"):
        describe_groups(client, ["group-0", "ended"])


def test_a_group_of_another_type_is_not_said_to_be_missing() -> None:
    world = world_of(1)
    world.groups["queue"] = Group(kind="share")
    client = FakeClient(world)
    assert known_groups(client, ["queue"]) == {}
    with pytest.raises(NoSuchGroup, match="'queue' is a share group"):
        describe_groups(client, ["group-0", "queue"])
