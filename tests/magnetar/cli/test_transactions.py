"""`magnetar transactions` as an operator meets it: tables, JSON, mistakes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordinator.transactions.metadata import ProducerIdentity, TopicPartition
from magnetar.broker import Broker
from magnetar.cli.commands import DURATION
from magnetar.cli.main import main
from magnetar.cli.tables import fields, table
from magnetar.client.cluster import Client, Leaders
from magnetar.client.readable import count, duration, moment
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import StartBroker
from tests.magnetar.ending import end

HOUR_MS = 3_600_000
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


async def run(broker: Broker, *arguments: str) -> Result:
    """Run the command in a thread, beside the broker's event loop."""
    address = f"127.0.0.1:{broker.listeners[0].port}"
    command = ["transactions", *arguments, "--bootstrap-server", address]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def printed(broker: Broker, *arguments: str) -> Any:
    result = await run(broker, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def begin(
    broker: Broker, transactional_id: str, *partitions: TopicPartition
) -> ProducerIdentity:
    """Leave a transaction open with one record in each partition."""
    if broker.topics.by_name("a") is None:
        broker.topics.create("a", 2)
    identity = await broker.transactions.init_producer_id(transactional_id, 60_000, None)
    await broker.transactions.holds.add_partitions(transactional_id, identity, set(partitions))
    for partition in partitions:
        append(broker, partition, identity, broker.clock.now_ms())
    return identity


def append(
    broker: Broker, partition: TopicPartition, identity: ProducerIdentity, timestamp_ms: int
) -> None:
    batch = batch_of(
        b"apple",
        timestamp=timestamp_ms,
        producer_id=identity.producer_id,
        epoch=identity.producer_epoch,
        sequence=0,
        transactional=True,
    )
    log = broker.topics.partition(*partition)
    log.append(log.check(batch, broker.clock.now_ms()))


async def test_the_table_shows_who_holds_back_what(broker: Broker) -> None:
    await begin(broker, "orders-etl-1", A0, A1)
    await begin(broker, "orders-etl-2", A0)
    identity = await begin(broker, "done", A1)
    await end(broker.transactions, "done", identity, commit=True)
    lines = (await run(broker, "list")).stdout.splitlines()
    assert lines[0].split("  ")[0] == "TRANSACTIONAL ID"
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert list(rows) == ["done", "orders-etl-1", "orders-etl-2"]
    assert rows["done"][2:] == ["CompleteCommit", str(identity.producer_id), "-", "-"]
    txn = broker.transactions.find("orders-etl-1")
    assert txn is not None
    assert rows["orders-etl-1"][1:3] == [str(txn.txn_id), "Ongoing"]
    assert " ".join(rows["orders-etl-1"][5:]) == "a-1 (3 records), a-0 (2 records)"
    assert rows["orders-etl-2"][5] == "-"  # the older one holds back its records too


async def test_options_filter_the_list(broker: Broker) -> None:
    await begin(broker, "orders-1", A0)
    await broker.transactions.init_producer_id("orders-2", 60_000, None)

    async def ids(*options: str) -> list[str]:
        return [each["transactional_id"] for each in await printed(broker, "list", *options)]

    assert await ids() == ["orders-1", "orders-2"]
    assert await ids("--open") == ["orders-1"]
    assert await ids("--state", "Empty") == ["orders-2"]
    assert await ids("--state", "Empty", "--open") == []
    assert await ids("--pattern", ".*-2") == ["orders-2"]
    assert await ids("--longer-than", "1h") == []
    producer_id = (await printed(broker, "list", "--open"))[0]["producer_id"]
    assert await ids("--producer-id", str(producer_id)) == ["orders-1"]
    empty = await run(broker, "list", "--pattern", "unknown")
    assert (empty.stdout, empty.stderr) == ("", "no transactions\n")


async def test_a_description_shows_where_a_transaction_is_open(broker: Broker) -> None:
    await begin(broker, "orders-1", A0)
    shown = (await run(broker, "describe", "orders-1")).stdout
    for part in ("TXN ID", "Ongoing", "TRANSACTION TIMEOUT  1m 00s", "START OFFSET", "1 record"):
        assert part in shown
    (described,) = await printed(broker, "describe", "orders-1")
    assert described["partitions"] == [{"topic": "a", "partition": 0}]
    assert described["open_in"][0]["start_offset"] == 0


async def test_an_abort_ends_the_transaction_everywhere(broker: Broker) -> None:
    identity = await begin(broker, "orders-1", A0, A1)
    result = await run(broker, "abort", "orders-1")
    assert result.exit_code == 0
    assert f"producer {identity.producer_id} is fenced" in result.stdout
    for partition in (A0, A1):
        log = broker.topics.partition(*partition)
        assert log.last_stable_offset == log.log_end_offset == 2
    again = await run(broker, "abort", "orders-1")
    assert again.exit_code == 1
    assert "nothing to abort: 'orders-1' is Empty" in again.stderr


async def test_a_transaction_may_be_longer_than_the_limit_is_by_now(
    start_broker: StartBroker,
) -> None:
    before = await start_broker({"durability": "page-cache"})
    await begin(before, "orders-1", A0)
    await before.stop()
    limit = {"durability": "page-cache", "transaction.max.timeout.ms": "1000"}
    broker = await start_broker(limit)
    result = await run(broker, "abort", "orders-1")
    assert result.exit_code == 0, result.output
    assert broker.topics.partition("a", 0).last_stable_offset == 2


async def test_what_hangs_is_found_and_aborted(broker: Broker) -> None:
    broker.topics.create("a", 2)
    append(broker, A1, ProducerIdentity(77, 3), int(time.time() * 1000) - HOUR_MS)
    (hanging,) = await printed(broker, "hanging")
    assert hanging["producer_id"] == 77
    assert (hanging["partition"], hanging["records_held_back"]) == (1, 1)
    found = await run(broker, "hanging", "--topic", "a", "--partition", "1")
    assert "To abort the first: magnetar transactions abort --topic a" in found.stderr
    assert await printed(broker, "hanging", "--max-transaction-timeout", "2h") == []
    assert await printed(broker, "hanging", "--topic", "a", "--partition", "0") == []
    place = ("--topic", "a", "--partition", "1", "--start-offset", "0")
    assert "producer 77" in (await run(broker, "abort", *place)).stdout
    assert broker.topics.partition(*A1).last_stable_offset == 2
    nothing = await run(broker, "hanging")
    assert (nothing.stdout, nothing.stderr) == ("", "no transaction hangs\n")


async def test_a_topic_that_is_deleted_meanwhile_has_nothing_that_hangs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.create("a", 2)
    append(broker, A1, ProducerIdentity(77, 3), int(time.time() * 1000) - HOUR_MS)
    asked = Client.topics

    def asked_before(client: Client, names: Iterable[str] | None = None) -> Leaders:
        return {**asked(client, names), ("gone", 0): 1}

    monkeypatch.setattr(Client, "topics", asked_before)
    (hanging,) = await printed(broker, "hanging")
    assert hanging["producer_id"] == 77
    unknown = await run(broker, "hanging", "--topic", "a", "--partition", "2")
    assert "a-2: UNKNOWN_TOPIC_OR_PARTITION" in unknown.stderr


async def test_a_marker_is_not_written_past_a_coordinator(broker: Broker) -> None:
    await begin(broker, "orders-1", A0)
    place = ("--topic", "a", "--partition", "0", "--start-offset", "0")
    refused = await run(broker, "abort", *place)
    assert refused.exit_code == 1
    assert "Ongoing at the coordinator of 'orders-1'" in refused.stderr
    assert (await run(broker, "abort", *place, "--force")).exit_code == 0
    elsewhere = await run(broker, "abort", *place[:-1], "9")
    assert "none is open there" in elsewhere.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "unknown"], "there is no transactional id 'unknown'"),
        (["abort", "unknown"], "there is no transactional id 'unknown'"),
        (["list", "--pattern", "("], "'(' is no regular expression of RE2"),
        (["hanging", "--topic", "nowhere"], "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_a_refusal_is_one_line_and_exit_code_1(
    arguments: list[str], message: str, broker: Broker
) -> None:
    result = await run(broker, *arguments)
    assert result.exit_code == 1
    # The broker in this process logs to the same standard error.
    (line,) = [each for each in result.stderr.splitlines() if not each.startswith("{")]
    assert line.startswith("magnetar: error: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--bootstrap-server", "nowhere"], "nowhere is not host:port"),
        (["list", "--state", "Foo"], "'Foo' is no state. There are: Empty, Ongoing"),
        (["list", "--bootstrap-server", "a..b:1"], "a..b:1 is not host:port"),
        (["list", "--longer-than", "soon"], "'soon' is no duration"),
        (["list", "--timeout", "0s"], "'0s' is no time at all"),
        (["list", "--timeout", "99999999d"], "'99999999d' is longer than 100000d"),
        (["describe"], "Missing argument"),
        (["abort"], "Name a TRANSACTIONAL_ID, or --topic"),
        (["abort", "x", "--topic", "a"], "exclude each other"),
        (["hanging", "--partition", "1"], "--partition needs --topic"),
    ],
)
def test_a_mistake_is_named_and_exits_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["transactions", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_help_names_every_command_and_option() -> None:
    shown = CliRunner().invoke(main, ["transactions", "--help"]).output
    for command in ("list", "describe", "abort", "hanging"):
        assert command in shown
    shown = CliRunner().invoke(main, ["transactions", "list", "--help"]).output
    for option in ("--open", "--state", "--longer-than", "--pattern", "--json", "--timeout"):
        assert option in shown


@pytest.mark.parametrize(
    ("value_ms", "shown"),
    [
        (-5, "0ms"),
        (850, "850ms"),
        (59_999, "59s"),
        (842_000, "14m 02s"),
        (HOUR_MS, "1h 00m"),
        (79 * HOUR_MS, "3d 07h"),
    ],
)
def test_durations_show_their_two_largest_units(value_ms: int, shown: str) -> None:
    assert duration(value_ms) == shown


@pytest.mark.parametrize(
    ("typed", "value_ms"), [("500ms", 500), ("1.5s", 1500), ("15m", 900_000), ("1d", 24 * HOUR_MS)]
)
def test_durations_are_typed_with_their_unit(typed: str, value_ms: int) -> None:
    assert DURATION.convert(typed, None, None) == value_ms


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("id", "state"), [("orders", "Empty")]) == "ID      STATE\norders  Empty"
    assert fields([("id", "x"), ("state", "Empty")]) == "ID     x\nSTATE  Empty"
    assert count(18204) == "18 204"
    assert moment(-1) == "-"
    assert moment(0) == "1970-01-01 00:00:00Z"


async def test_a_parent_is_shown_with_its_votes(broker: Broker) -> None:
    for name in ("etl~>1", "etl~>2"):
        identity = await begin(broker, name, A0)
        await end(broker.transactions, name, identity, commit=True)
    await begin(broker, "etl~>3", A1)
    await begin(broker, "etl-other")
    assert "VOTES" not in (await run(broker, "list", "--pattern", "etl-.*")).stdout
    await begin(broker, "etl", A1)

    lines = (await run(broker, "list")).stdout.splitlines()
    assert lines[0].endswith("VOTES")
    rows = {line.split()[0]: line for line in lines[1:]}
    assert list(rows) == ["etl", "etl~>1", "etl~>2", "etl~>3", "etl-other"]
    assert rows["etl"].endswith("2 of 3") and rows["etl~>1"].endswith("for etl")
    assert "Voted" in rows["etl~>2"] and "a-0 (2 records)" in rows["etl~>1"]
    assert rows["etl~>3"].endswith("-") and "Ongoing" in rows["etl~>3"]
    voted = [each["transactional_id"] for each in await printed(broker, "list", "--state", "Voted")]
    assert voted == ["etl~>1", "etl~>2"]
    sealed = (await run(broker, "list", "--state", "Ongoing")).stdout.splitlines()
    assert sealed[1].endswith("2 of 3")

    (parent,) = await printed(broker, "describe", "etl")
    assert [each["state"] for each in parent["children"]] == ["Voted", "Voted", "Ongoing"]
    assert parent["children"][0]["parent"] == "etl"
    shown = (await run(broker, "describe", "etl")).stdout
    assert "CHILD" in shown and "etl~>3" in shown
    child = (await run(broker, "describe", "etl~>1")).stdout
    assert ["PARENT", "etl"] in [line.split() for line in child.splitlines()]


async def test_children_are_shown_also_where_nobody_has_opened_the_parent(broker: Broker) -> None:
    await begin(broker, "etl~>1", A0)
    shown = (await run(broker, "describe", "etl")).stdout
    assert ["STATE", "Unknown"] in [line.split() for line in shown.splitlines()]
    assert "etl~>1" in shown
    (parent,) = await printed(broker, "describe", "etl")
    assert (parent["producer_id"], parent["started_ms"]) == (-1, None)
    refused = await run(broker, "abort", "etl")
    assert refused.exit_code == 1 and "Unknown" in refused.stderr


async def test_a_vote_is_aborted_through_its_coordinator(broker: Broker) -> None:
    identity = await begin(broker, "etl~>1", A0)
    await end(broker.transactions, "etl~>1", identity, commit=True)
    result = await run(broker, "abort", "etl~>1")
    assert result.exit_code == 0, result.output
    assert broker.topics.partition("a", 0).last_stable_offset == 2
    result = await run(broker, "abort", "etl~>1")
    assert result.exit_code == 1 and "Empty" in result.stderr


async def test_a_vote_that_is_sealed_is_aborted_by_way_of_its_parent(broker: Broker) -> None:
    identity = await begin(broker, "etl job~>1", A0)
    await end(broker.transactions, "etl job~>1", identity, commit=True)
    await begin(broker, "etl job", A1)
    refused = await run(broker, "abort", "etl job~>1", "--timeout", "200ms")
    assert refused.exit_code == 1
    assert "`magnetar transactions abort 'etl job'` aborts them both" in refused.stderr
    assert (await run(broker, "abort", "etl job")).exit_code == 0
    assert broker.topics.partition("a", 0).last_stable_offset == 2
