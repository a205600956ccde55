"""Kafka's tools for groups, ConsumerGroupCommand and GroupsCommand, and `magnetar groups` beside
them: the same answers from both brokers.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat_tests import confluent_client, tool_box
from compat_tests.admin import create_topic
from compat_tests.brokers import MAGNETAR, WORKERS, Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.conftest import Enter, MakeTopic
from compat_tests.group_frames import Code, Member, assignment, subscription

FIRST_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z; each record a second later than the one before."""
RECORDS = 10
NEVER = "2033-11-14T22:13:23.000"

#: (mode, new offsets of partitions 0 and 1 when 4 and 5 are committed)
RESETS: list[tuple[tuple[str, ...], tuple[int, int]]] = [
    (("--to-earliest",), (0, 0)),
    (("--to-latest",), (10, 10)),
    (("--to-offset", "3"), (3, 3)),
    (("--to-offset", "99"), (10, 10)),
    (("--shift-by", "-2"), (2, 3)),
    (("--shift-by", "-99"), (0, 0)),
    (("--shift-by", "99"), (10, 10)),
    (("--to-datetime", "2023-11-14T22:13:23.000"), (3, 3)),
    (("--to-datetime", NEVER), (10, 10)),
    (("--to-current",), (4, 5)),
]
DURATIONS = [("P1D", "1d", (10, 10)), ("P20000D", "20000d", (0, 0))]


class Scene(NamedTuple):
    """A group that has committed 4 and 5 in the two partitions of a topic of ten records each."""

    broker: Broker
    topic: str
    member: Member

    @property
    def group(self) -> str:
        return self.member.group

    def tool(self, *arguments: str, tool: str = "consumer.group.ConsumerGroupCommand") -> list[str]:
        """Return the lines Kafka's tool prints, cells one space apart."""
        ended = tool_box.call(tool, "--bootstrap-server", self.broker.bootstrap, *arguments)
        assert ended.status == 0, ended
        return [" ".join(line.split()) for line in ended.output.splitlines() if line.strip()]

    def cli(self, *arguments: str) -> Any:
        """Return the JSON that `magnetar groups` prints."""
        ended = self.ended(*arguments, "--json")
        assert ended.returncode == 0, ended
        return json.loads(ended.stdout)

    def ended(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(MAGNETAR), "groups", *arguments, "--bootstrap", self.broker.bootstrap]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    def committed(self) -> tuple[int, int]:
        found = self.member.committed([(self.topic, [0, 1])])
        return found[self.topic, 0][0], found[self.topic, 1][0]

    def start_reading(self) -> None:
        """Let the member join, and read both partitions."""
        range_of = (("range", subscription(self.topic)),)
        # It sends no heartbeats, and tools are slow.
        self.member.enter(protocols=range_of, session_timeout_ms=600_000)
        synced = self.member.sync(assignments={self.member.member_id: assignment(self.topic, 0, 1)})
        assert synced.error_code == 0


@pytest.fixture
def scene(broker: Broker, topic: MakeTopic, enter: Enter) -> Scene:
    # The records are years old: retention would delete them.
    orders, member = topic("orders", 2, retention_ms="-1"), enter()
    client = confluent_client.producer(broker.bootstrap)
    for number in range(2 * RECORDS):
        moment = FIRST_MS + number // 2 * 1000
        client.produce(orders, b"value", partition=number % 2, timestamp=moment)
    assert client.flush(TIMEOUT_S) == 0
    for partition, offset in ((0, 4), (1, 5)):
        assert member.commit(orders, offset, partition=partition) is Code.NONE
    return Scene(broker, orders, member)


@pytest.fixture
def planned(scene: Scene) -> Any:
    """Return what a dry run of Kafka's tool plans for both partitions, and change nothing."""

    def plan(*mode: str) -> tuple[int, int]:
        lines = scene.tool(
            *("--group", scene.group, "--topic", scene.topic, "--reset-offsets", *mode),
            "--dry-run",
        )
        start = lines.index("GROUP TOPIC PARTITION NEW-OFFSET")
        rows = dict(line.split()[2:] for line in lines[start + 1 :])
        assert scene.committed() == (4, 5)
        return int(rows["0"]), int(rows["1"])

    return plan


def cli_planned(scene: Scene, *mode: str) -> tuple[int, int]:
    """As `planned`, of `magnetar groups reset`."""
    found = scene.cli("reset", scene.group, "--topic", scene.topic, *mode)
    assert [each["executed"] for each in found] == [False, False]
    assert [each["committed"] for each in found] == [4, 5] == [*scene.committed()]
    zero, one = (each["new"] for each in found)
    return zero, one


def test_every_reset_is_planned_alike(scene: Scene, planned: Any) -> None:
    for mode, expected in RESETS:
        assert planned(*mode) == expected, mode
    for iso, _, expected in DURATIONS:
        assert planned("--by-duration", iso) == expected


def test_magnetars_own_resets_are_kafkas(scene: Scene) -> None:
    for mode, expected in RESETS:
        assert cli_planned(scene, *mode) == expected, mode
    for _, duration, expected in DURATIONS:
        assert cli_planned(scene, "--by-duration", duration) == expected


def test_resets_are_carried_out(scene: Scene, tmp_path: Path) -> None:
    reset = ("--group", scene.group, "--reset-offsets")
    lines = scene.tool(*reset, "--all-topics", "--to-offset", "6", "--execute")
    rows = [f"{scene.group} {scene.topic} {partition} 6" for partition in range(2)]
    assert sorted(lines[1:]) == rows
    scene.tool(*reset, "--topic", f"{scene.topic}:0", "--shift-by", "1", "--execute")
    assert scene.committed() == (7, 6)
    exported = scene.tool(*reset, "--all-topics", "--to-current", "--export", "--dry-run")
    assert sorted(exported) == [f"{scene.topic},0,7", f"{scene.topic},1,6"]
    plan = tmp_path / "reset.csv"
    plan.write_text(f"{scene.topic},0,2\n{scene.topic},1,9\n")
    scene.tool(*reset, "--from-file", str(plan), "--dry-run")
    assert scene.committed() == (7, 6)
    scene.tool(*reset, "--from-file", str(plan), "--execute")
    assert scene.committed() == (2, 9)


def test_a_group_without_members_is_described(scene: Scene) -> None:
    group, orders = scene.group, scene.topic
    describe = ("--describe", "--group", group)
    offsets = [
        "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID",
        f"{group} {orders} 0 4 10 6 - - -",
        f"{group} {orders} 1 5 10 5 - - -",
    ]
    assert scene.tool(*describe) == scene.tool(*describe, "--offsets") == offsets
    assert scene.tool(*describe, "--state")[1:] == [
        f"{group} {scene.member.coordinator()} - Empty 0"
    ]
    assert scene.tool(*describe, "--members")[1:] == []
    assert group in scene.tool("--list")
    assert f"{group} Classic Empty" in scene.tool("--list", "--state", "Empty", "--type")
    assert f"{group} Empty" not in scene.tool("--list", "--state", "Stable")
    assert f"{group} Consumer" not in scene.tool("--list", "--type", "consumer")


def test_a_group_with_a_member_is_described(scene: Scene) -> None:
    scene.start_reading()
    group, orders, member = scene.group, scene.topic, scene.member.member_id
    describe = ("--describe", "--group", group)
    assert scene.tool(*describe)[1:] == [
        f"{group} {orders} 0 4 10 6 {member} /127.0.0.1 raw",
        f"{group} {orders} 1 5 10 5 {member} /127.0.0.1 raw",
    ]
    assert scene.tool(*describe, "--state")[1:] == [
        f"{group} {scene.member.coordinator()} range Stable 1"
    ]
    assert scene.tool(*describe, "--members")[1:] == [f"{group} {member} /127.0.0.1 raw 2"]
    assert scene.tool(*describe, "--members", "--verbose")[1:] == [
        f"{group} {member} /127.0.0.1 raw 2 - {orders}:0,1 - -"
    ]
    assert f"{group} Stable" in scene.tool("--list", "--state")


def test_all_groups_are_described(own_broker: Broker) -> None:
    """On a broker of the test's own: the tool gives up at the first group it cannot parse, and
    members of other tests may send what no client of Kafka's would.
    """
    create_topic(own_broker.bootstrap, "orders", 2, {})
    with Member(own_broker.bootstrap, "readers") as member:
        scene = Scene(own_broker, "orders", member)
        scene.start_reading()
        found = scene.tool("--describe", "--all-groups", "--state")
        assert f"readers {member.coordinator()} range Stable 1" in found


def test_what_members_use_is_not_taken_from_them(scene: Scene) -> None:
    scene.start_reading()
    group, orders = scene.group, scene.topic
    reset = ("--group", group, "--topic", orders, "--reset-offsets", "--to-earliest", "--execute")
    assert scene.tool(*reset)[0] == (
        f"Error: Assignments can only be reset if the group '{group}' is inactive,"
        " but the current state is Stable."
    )
    assert scene.tool("--delete", "--group", group)[1] == (
        f"* Group '{group}' could not be deleted due to:"
        " org.apache.kafka.common.errors.GroupNotEmptyException: The group is not empty."
    )
    refused = scene.tool("--delete-offsets", "--group", group, "--topic", orders)
    assert sum("GroupSubscribedToTopicException" in line for line in refused) == 2
    assert scene.committed() == (4, 5)


def test_offsets_and_groups_are_deleted(scene: Scene) -> None:
    group, orders = scene.group, scene.topic
    delete_offsets = ("--delete-offsets", "--group", group, "--topic")
    assert scene.tool(*delete_offsets, f"{orders}:0")[2:] == [f"{orders} 0 Successful"]
    assert scene.committed() == (-1, 5)
    (unknown,) = scene.tool(*delete_offsets, "never-made")[2:]
    assert "UnknownTopicOrPartitionException" in unknown
    assert scene.tool("--delete", "--group", group) == [
        f"Deletion of requested consumer groups ('{group}') was successful."
    ]
    assert "GroupIdNotFoundException" in scene.tool("--delete", "--group", group)[1]
    assert "GroupIdNotFoundException" in scene.tool("--describe", "--group", group)[0]
    assert scene.committed() == (-1, -1)


@pytest.mark.parametrize(("pattern", "verdict"), [("a.*", "is valid."), ("(", "is invalid:")])
def test_a_regular_expression_is_judged(scene: Scene, pattern: str, verdict: str) -> None:
    (line,) = scene.tool("--validate-regex", pattern)
    assert verdict in line


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ((), True),
        (("--group-type", "classic"), True),
        (("--consumer",), True),
        (("--group-type", "consumer"), False),
        (("--protocol", "connect"), False),
        (("--share",), False),
        (("--streams",), False),
    ],
)
def test_groups_of_every_type_are_listed(
    scene: Scene, filters: tuple[str, ...], shown: bool
) -> None:
    listed = scene.tool("--list", *filters, tool="GroupsCommand")
    assert listed[0] == "GROUP TYPE PROTOCOL"
    assert (f"{scene.group} Classic" in listed) is shown


# --- magnetar's own


def test_the_command_line_shows_groups(scene: Scene) -> None:
    group, orders = scene.group, scene.topic
    (listed,) = [each for each in scene.cli("list") if each["group"] == group]
    assert 1 <= listed.pop("coordinator") <= WORKERS
    assert listed == {
        "group": group,
        "type": "classic",
        "protocol": "",
        "state": "Empty",
    }
    assert all(each["group"] != group for each in scene.cli("list", "--state", "Stable"))
    scene.start_reading()
    member = scene.member.member_id
    (described,) = scene.cli("describe", group)
    assert (described["state"], described["protocol"], described["assignor"]) == (
        "Stable",
        "consumer",
        "range",
    )
    (shown,) = described["members"]
    assert (shown["member_id"], shown["client_id"], shown["host"]) == (member, "raw", "/127.0.0.1")
    assert shown["partitions"] == [{"topic": orders, "partition": index} for index in range(2)]
    assert [
        (each["partition"], each["committed"], each["end"], each["lag"], each["member_id"])
        for each in scene.cli("lag", group)
    ] == [(0, 4, 10, 6, member), (1, 5, 10, 5, member)]
    text = scene.ended("describe", group).stdout
    assert f"{orders}:0,1" in text


def test_the_command_line_changes_groups_without_members(scene: Scene) -> None:
    group = scene.group
    reset = ("reset", group, "--topic", f"{scene.topic}:1", "--to-offset", "8", "--execute")
    assert [move["executed"] for move in scene.cli(*reset)] == [True]
    assert scene.committed() == (4, 8)
    scene.start_reading()
    refused = scene.ended(*reset)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has members" in refused.stderr
    kept = scene.ended("delete", group)
    assert kept.returncode == 1
    assert "NON_EMPTY_GROUP" in kept.stderr
    scene.member.leave()
    assert scene.cli("delete", group) == [{"group": group, "deleted": True, "error": None}]
    assert scene.committed() == (-1, -1)
    missing = scene.ended("describe", group)
    assert missing.returncode == 1
    assert "there is no group" in missing.stderr
