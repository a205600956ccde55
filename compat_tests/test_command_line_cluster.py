"""`magnetar cluster`, `log-dirs`, `offsets`, `trim`, `producers`, `quotas` and `top`.

On both brokers, with one outcome.
"""

from __future__ import annotations

import json

from compat_tests import raw
from compat_tests.brokers import OVER_POSTGRESQL, Broker
from compat_tests.command_line import output, printed, refusal, run
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.waiting import eventually

LINES = b"".join(b"%d\n" % number for number in range(20))


def test_the_cluster_and_its_disks_are_shown(broker: Broker, topic: MakeTopic) -> None:
    node, *others = printed(broker, "cluster")
    assert len(others) == broker.node_count - 1
    assert f"{node['host']}:{node['port']}" == broker.bootstrap
    assert node["controller"] and node["cluster_id"]
    assert node["cluster_id"].encode() in output(broker, "cluster")
    filled = topic("filled", partitions=2)
    output(broker, "produce", filled, "-p", "1", stdin=LINES)
    directories = printed(broker, "log-dirs", "--topic", filled)
    assert len(directories) == broker.node_count
    partitions = [each for directory in directories for each in directory["partitions"]]
    sizes = {each["partition"]: each["size_bytes"] for each in partitions}
    assert sizes[0] == 0 and sizes[1] > 20
    for directory in directories:
        if OVER_POSTGRESQL:  # Nodes cannot know the disk of the database.
            assert directory["total_bytes"] is None and directory["usable_bytes"] is None
        else:
            assert directory["total_bytes"] > directory["usable_bytes"] > 0
    assert filled.encode() in output(broker, "log-dirs", "--topic", filled)


def test_offsets_are_looked_up_and_records_before_one_are_deleted(
    broker: Broker, topic: MakeTopic
) -> None:
    orders = topic("orders", partitions=2)
    output(broker, "produce", orders, "-p", "1", stdin=LINES)

    def offsets(at: str) -> list[int]:
        return [each["offset"] for each in printed(broker, "offsets", "list", orders, "--at", at)]

    assert offsets("end") == [0, 20]
    assert offsets("-5") == [0, 15]
    assert offsets("-1h") == [0, 0]
    planned = printed(broker, "trim", orders, "--before", "-5", "--dry-run")
    assert [(each["start"], each["new_start"]) for each in planned] == [(0, 0), (0, 15)]
    assert offsets("beginning") == [0, 0]
    # The first partition has no record: a mistyped offset would delete all that it has.
    for before, partitions in (("15", orders), ("21", f"{orders}:1")):
        said = refusal(broker, "trim", partitions, "--before", before)
        assert "OFFSET_OUT_OF_RANGE" in said and f"before offset {before}. Nothing was" in said
    assert offsets("beginning") == [0, 0]
    trimmed = printed(broker, "trim", f"{orders}:1", "--before", "15")
    assert [each["new_start"] for each in trimmed] == [15]
    assert offsets("beginning") == [0, 15]
    assert "has no partition 7" in refusal(broker, "trim", f"{orders}:7", "--before", "end")


def test_a_group_loses_the_offsets_of_a_topic_that_it_does_not_read(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    first, second, group = topic("first"), topic("second"), name("group")
    for each in (first, second):
        output(broker, "produce", each, stdin=LINES)
        run(broker, "consume", each, "-g", group, "--exit")

    def committed() -> set[str]:
        return {each["topic"] for each in printed(broker, "groups", "lag", group)}

    assert committed() == {first, second}
    (deleted,) = printed(broker, "offsets", "delete", group, "--topic", first)
    assert deleted["deleted"] and deleted["topic"] == first
    eventually(lambda: committed() == {second})


def test_producers_and_their_open_transactions_are_shown(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders = topic("orders")
    with raw.Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("open"))
        connection.write_in_transaction(identity, orders, b"a", b"b")
        (shown,) = printed(broker, "producers", orders, "--open")
        assert shown["producer_id"] == identity.producer_id
        assert (shown["open_from"], shown["last_sequence"]) == (0, 1)
        assert connection.end(identity, commit=True).error_code == 0
    eventually(lambda: printed(broker, "producers", orders, "--open") == [])
    assert len(printed(broker, "producers", orders)) == 1


def test_quotas_come_and_go(broker: Broker, name: MakeName) -> None:
    user = name("user")
    run(broker, "quotas", "set", "--user", user, "producer_byte_rate=1048576")
    both = ("--user", user, "--default-client-id")
    run(broker, "quotas", "set", *both, "consumer_byte_rate=2048", "request_percentage=12.5")

    def quotas() -> list[tuple[int, dict[str, float]]]:
        listed = printed(broker, "quotas", "list", "--user", user)
        return [(len(each["entity"]), each["quotas"]) for each in listed]

    eventually(lambda: len(quotas()) == 2)
    assert quotas() == [
        (1, {"producer_byte_rate": 1048576}),
        (2, {"consumer_byte_rate": 2048, "request_percentage": 12.5}),
    ]
    run(broker, "quotas", "unset", "--user", user, "producer_byte_rate")
    run(broker, "quotas", "unset", *both, "consumer_byte_rate", "request_percentage")
    eventually(lambda: quotas() == [])
    assert "INVALID_REQUEST" in refusal(broker, "quotas", "set", "--user", user, "no_such_rate=1")


def test_top_sees_a_topic_grow_and_who_is_behind(
    broker: Broker, topic: MakeTopic, name: MakeName
) -> None:
    orders, group = topic("orders"), name("late")
    output(broker, "produce", orders, stdin=LINES)
    run(broker, "consume", orders, "-g", group, "--count", "5")
    with raw.Connection(broker.bootstrap) as connection:
        identity = connection.producer(name("open"))
        connection.write_in_transaction(identity, orders, b"a")
        printed_lines = output(broker, "top", "-n", "2", "--interval", "200ms", "--json")
        assert connection.end(identity, commit=False).error_code == 0
    looks = [json.loads(line) for line in printed_lines.splitlines()]
    assert len(looks) == 2
    lag = {each["group"]: each["lag"] for each in looks[1]["groups"]}
    assert lag[group] == 16
    assert {each["topic"]: each["end"] for each in looks[1]["topics"]}[orders] == 21
    assert len(looks[1]["open_transactions"]) >= 1
    assert b"OPEN TRANSACTION" in output(broker, "top", "-n", "1", "--interval", "10ms")
