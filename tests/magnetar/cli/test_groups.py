"""`magnetar groups` as an operator meets it: tables, JSON, mistakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordinator.groups.committing import Committer
from coordinator.groups.offsets.committed import CommittedOffset
from magnetar.broker import Broker
from magnetar.cli.groups import _partitions
from magnetar.cli.main import main
from magnetar.client.group_offsets import Bounds, shifted, to_current, to_offset
from magnetar.client.groups import Member, Position
from magnetar.client.readable import parse_moment
from tests.logstore.partitions import batch_of
from tests.magnetar.committing import durably
from tests.magnetar.conftest import RawClient
from wire.internal.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from wire.internal.versioned import encode_versioned
from wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

Connect = Callable[..., Awaitable[RawClient]]


async def run(broker: Broker, *arguments: str) -> Result:
    """Run the command in a thread, beside the broker's event loop."""
    address = f"127.0.0.1:{broker.listeners[0].port}"
    command = ["groups", *arguments, "--bootstrap", address]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def committed(broker: Broker, group_id: str, offset: int = 2) -> None:
    """Make a topic `orders` of two partitions, five records each; let the group read some."""
    topic = broker.topics.by_name("orders")
    if topic is None:
        topic = broker.topics.create("orders", 2)
        for log in topic.local:
            values = [b"%d" % number for number in range(5)]
            log.append(log.check(batch_of(*values, timestamp=1_000), broker.clock.now_ms()))
            await log.durable(log.log_end_offset)
    await durably(
        broker.groups.offsets.commit(
            Committer(group_id=group_id),
            [("orders", 0, CommittedOffset(offset, topic_id=topic.id))],
            knows_group_not_found=True,
        )
    )


async def reading(client: RawClient, group_id: str) -> str:
    """Become the only member, reading orders-0; return its id."""
    subscribed = encode_versioned(ConsumerProtocolSubscription(topics=["orders"]))
    joined = await client.ask(
        JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscribed)],
        ),
        3,
        JoinGroupResponse,
    )
    part = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="orders", partitions=[0])]
    )
    synced = await client.ask(
        SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=joined.member_id, assignment=encode_versioned(part)
                )
            ],
        ),
        3,
        SyncGroupResponse,
    )
    assert (joined.error_code, synced.error_code) == (0, 0)
    return joined.member_id


async def test_groups_are_listed_in_a_table(broker: Broker) -> None:
    assert (await run(broker, "list")).stderr == "no groups\n"
    await committed(broker, "billing")
    lines = (await run(broker, "list")).stdout.splitlines()
    assert lines[0].split() == ["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"]
    assert lines[1].split() == ["billing", "Empty", "classic", "-", "1"]
    assert (await run(broker, "list", "--state", "Stable")).stdout == ""


async def test_a_group_is_described_with_who_reads_what(broker: Broker, connect: Connect) -> None:
    await committed(broker, "billing")
    member_id = await reading(await connect(broker), "billing")
    text = (await run(broker, "describe", "billing")).stdout
    shown = dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines())
    assert (shown["GROUP"], shown["STATE"], shown["ASSIGNOR"]) == ("billing", "Stable", "range")
    (row,) = text.split("\n\n")[1].splitlines()[1:]
    assert row.split() == [member_id, "-", "raw", "127.0.0.1", "orders:0"]
    (row,) = text.split("\n\n")[2].splitlines()[1:]
    assert (shown["LAG"], row.split()) == ("3", ["orders", "0", "2", "5", "3", member_id])
    (described,) = json.loads((await run(broker, "describe", "billing", "--json")).stdout)
    assert [each["lag"] for each in described["partitions"]] == [3]


async def test_lag_is_what_is_still_to_be_read(broker: Broker, connect: Connect) -> None:
    await committed(broker, "billing")
    rows = (await run(broker, "lag")).stdout.splitlines()[1:]
    assert [row.split() for row in rows] == [["billing", "orders", "0", "2", "5", "3", "-"]]
    member_id = await reading(await connect(broker), "billing")
    found = json.loads((await run(broker, "lag", "billing", "--json")).stdout)
    assert [(each["lag"], each["member_id"]) for each in found] == [(3, member_id)]
    assert (await run(broker, "lag", "billing", "--topic", "other")).stdout == ""


async def test_a_reset_changes_nothing_until_it_is_told_to(broker: Broker) -> None:
    await committed(broker, "billing")
    reset = ("reset", "billing", "--topic", "orders", "--to-latest")
    planned = await run(broker, *reset)
    assert [row.split() for row in planned.stdout.splitlines()[1:]] == [
        ["orders", "0", "2", "5"],
        ["orders", "1", "-", "5"],
    ]
    assert "Nothing was changed." in planned.stderr
    assert (await run(broker, "lag", "billing")).stdout.splitlines()[1].split()[3] == "2"
    done = await run(broker, *reset, "--execute")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads((await run(broker, "lag", "--json")).stdout)
    assert [each["committed"] for each in found] == [5, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to-latest"], "Name --topic, or --all-topics."),
        (["--all-topics"], "Say where to, once"),
        (["--all-topics", "--to-latest", "--to-offset", "3"], "Say where to, once"),
        (["--all-topics", "--to-datetime", "noon"], "is no time"),
        (["--all-topics", "--to-latest", "--execute", "--dry-run"], "exclude each other"),
    ],
)
def test_mistakes_are_told_before_a_broker_is_asked(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["groups", "reset", "billing", *arguments, "-b", ":1"])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("orders:7", "orders has no partition 7"),
        ("orders:a", "neither TOPIC nor TOPIC:PARTITION"),
        ("other", "topic other: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_what_is_not_there_cannot_be_reset(broker: Broker, topic: str, message: str) -> None:
    await committed(broker, "billing")
    result = await run(broker, "reset", "billing", "--topic", topic, "--to-earliest")
    assert result.exit_code == 1
    assert message in result.stderr


async def test_groups_with_members_are_left_alone(broker: Broker, connect: Connect) -> None:
    await committed(broker, "billing")
    await committed(broker, "audit")
    await reading(await connect(broker), "billing")
    reset = await run(broker, "reset", "billing", "--all-topics", "--to-latest", "--execute")
    assert reset.exit_code == 1
    assert "has members" in reset.stderr
    deleted = await run(broker, "delete", "billing", "audit", "unknown")
    assert deleted.exit_code == 1
    assert deleted.stdout == "audit: deleted\n"
    assert "'billing': NON_EMPTY_GROUP" in deleted.stderr
    assert "'unknown': GROUP_ID_NOT_FOUND" in deleted.stderr


async def test_a_group_that_is_not_there_is_named(broker: Broker) -> None:
    result = await run(broker, "describe", "unknown")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no group 'unknown'" in result.stderr


async def test_why_names_what_keeps_a_group(broker: Broker, connect: Connect) -> None:
    await committed(broker, "billing")
    address = f"127.0.0.1:{broker.listeners[0].port}"

    async def why() -> str:
        command = ["why", "billing", "--for", "10ms", "-b", address]
        return (await asyncio.to_thread(CliRunner().invoke, main, command)).stdout

    assert await why() == "The group has no members: no consumer runs, or none gets in.\n"
    member_id = await reading(await connect(broker), "billing")
    assert await why() == (
        f"orders-0: 3 wait. Member {member_id} has the partition, and committed nothing in"
        " 0.01 s.\n"
    )
    await committed(broker, "audit", 5)
    command = ["why", "audit", "--for", "10ms", "-b", address]
    told = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert told.stdout == "audit has read everything.\n"


async def test_an_error_is_json_where_the_answer_would_be(broker: Broker) -> None:
    await committed(broker, "billing")
    reset = ("reset", "billing", "--topic", "other", "--to-earliest", "--json")
    result = await run(broker, *reset)
    # The broker in this process logs to the same standard error.
    (line,) = [each for each in result.stderr.splitlines() if each.startswith('{"error"')]
    error = json.loads(line)["error"]
    assert (result.exit_code, result.stdout) == (1, "")
    assert error["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error["message"].startswith("topic other: ")


async def test_completion_knows_groups_and_topics(broker: Broker) -> None:
    await committed(broker, "billing")
    await committed(broker, "audit")
    address = f"127.0.0.1:{broker.listeners[0].port}"

    def completed(words: str) -> str:
        environment = {
            "_MAGNETAR_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        return CliRunner().invoke(main, prog_name="magnetar", env=environment).stdout

    shown = await asyncio.to_thread(completed, f"magnetar groups describe -b {address} bi")
    assert shown == "plain,billing\n"
    shown = await asyncio.to_thread(completed, f"magnetar topics describe -b {address} ord")
    assert shown == "plain,orders\n"
    # Without a broker there is nothing to complete, and nothing is said either.
    assert await asyncio.to_thread(completed, "magnetar topics describe -b 127.0.0.1:1 o") == "\n"


def test_targets_stay_within_the_partition() -> None:
    bounds = Bounds(start=3, end=9, committed=5)
    nothing = Bounds(start=3, end=9, committed=-1)
    targets: list[tuple[Any, list[int]]] = [
        (to_offset(0), [3, 3]),
        (to_offset(7), [7, 7]),
        (to_offset(99), [9, 9]),
        (shifted(-1), [4, 3]),
        (shifted(2), [7, 5]),
        (to_current, [5, 9]),
    ]
    for target, planned in targets:
        assert [target(each) for each in (bounds, nothing)] == planned


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_moment("1970-01-01T00:00:01") == parse_moment("1970-01-01T01:00:01+01:00") == 1000


def test_lag_is_unknown_where_either_end_is() -> None:
    reader = Member("m", None, "c", "/h", [])
    assert Position("t", 0, -1, 5, reader).lag == Position("t", 0, 5, -1, None).lag == -1
    assert Position("t", 0, 7, 5, None).lag == 0  # The log was cut, or the topic made anew.


def test_many_partitions_are_counted() -> None:
    few = [("a", 0), ("a", 1)]
    assert _partitions(few) == "a:0,1"
    assert _partitions([("a", index) for index in range(9)]) == "a (9 partitions)"
    assert _partitions([(topic, 0) for topic in "abcdef"]).endswith("2 more topics")
    assert _partitions([]) == "nothing"


async def test_a_mistyped_group_is_no_reset_without_offsets(broker: Broker) -> None:
    await committed(broker, "billing")
    ended = await run(broker, "reset", "biling", "--all-topics", "--to-earliest", "--execute")
    assert ended.exit_code == 1
    assert ended.stderr == "magnetar: error: there is no group 'biling'.\n"


async def test_states_and_types_are_kafkas(broker: Broker) -> None:
    await committed(broker, "billing")
    for option, wrong, right in (("--state", "full", "empty"), ("--type", "clasic", "Classic")):
        ended = await run(broker, "list", option, wrong)
        assert ended.exit_code == 2
        assert f"{wrong!r} is not one of" in ended.stderr
        assert "billing" in (await run(broker, "list", option, right)).stdout


async def test_a_group_cannot_write_on_the_terminal(broker: Broker) -> None:
    await committed(broker, "\x1b[2Jbilling\n")
    for command in (("list",), ("describe", "\x1b[2Jbilling\n"), ("lag",)):
        ended = await run(broker, *command)
        assert "\x1b" not in ended.output and "\\x1b[2Jbilling\\n" in ended.stdout
    refused = await run(broker, "delete", "\x1b[2J")
    assert "\x1b" not in refused.output
