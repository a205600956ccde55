"""Transactions whose coordinator, partitions and groups are on different nodes, over the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from coordinator.partitioning import partition_for
from coordinator.transactions.metadata import State, TopicPartition
from magnetar.config.load import ConfigError
from magnetar.peers.node_peers import NodePeers
from magnetar.runtime import commit
from magnetar.runtime.holds_elsewhere import Codes, HoldQuery
from tests.logstore.partitions import batch_of
from tests.logstore.reading import records_from
from tests.magnetar.nodes_in_one import NodesInOne, two_of
from tests.magnetar.transacting_client import V1, V2, Client
from wire.error_code import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.messages.produce import PartitionProduceData, ProduceResponse, TopicProduceData
from wire.records import ControlType, Marker


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[NodesInOne]:
    async with two_of(NodesInOne(tmp_path / "data")) as started:
        yield started


async def committed_offset(nodes: NodesInOne, group_node: int) -> int:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=nodes.group_id(group_node),
                topics=[OffsetFetchRequestTopics(name="a", partition_indexes=[0])],
            )
        ],
        require_stable=True,
    )
    answer = await (await nodes.client(group_node)).ask(request, 8, OffsetFetchResponse)
    return answer.groups[0].topics[0].partitions[0].committed_offset


def committed(nodes: NodesInOne, node_id: int) -> int:
    """Return how many records of a node's partition a read_committed reader gets."""
    log = nodes.log(node_id)
    count = waiting = 0
    for header, item in records_from(log.reader, 0):
        if header.base_offset >= log.last_stable_offset:
            break
        if isinstance(item, Marker):
            count += waiting * (item.control_type is ControlType.COMMIT)
            waiting = 0
        else:
            waiting += 1
    return count


def is_open(nodes: NodesInOne, node_id: int) -> bool:
    log = nodes.log(node_id)
    return log.last_stable_offset < log.log_end_offset


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("coordinator", [0, 1])
async def test_a_commit_that_has_returned_is_visible_on_every_node(
    nodes: NodesInOne, version: int, coordinator: int
) -> None:
    client = Client(nodes, coordinator, version)
    await client.init()
    await client.write(0, 1)
    assert await client.send_offset(1 - coordinator, 17) == ErrorCode.NONE
    assert is_open(nodes, 0) and is_open(nodes, 1)
    assert await client.end(commit=True) == ErrorCode.NONE
    assert [committed(nodes, one) for one in (0, 1)] == [1, 1]
    assert not is_open(nodes, 0) and not is_open(nodes, 1)
    assert await committed_offset(nodes, 1 - coordinator) == 17
    # The next transaction may begin at once, on every node.
    await client.write(0, 1)
    assert await client.end(commit=False) == ErrorCode.NONE
    assert not is_open(nodes, 0) and not is_open(nodes, 1)


@pytest.mark.parametrize("version", [V1, V2])
async def test_many_offsets_wait_for_the_answer_of_another_node(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """They are prepared in a thread before."""
    monkeypatch.setattr("magnetar.apis.txn_offset_commit.ELEMENTS_AT_ONCE", 0)
    client = Client(nodes, 0, version)
    await client.init()
    assert await client.send_offset(1, 17) == ErrorCode.NONE
    assert await client.send_offset(1, 18) == ErrorCode.NONE
    assert await client.end(commit=True) == ErrorCode.NONE
    assert await committed_offset(nodes, 1) == 18
    code = await client.send_offset(1, 99, adds=False)
    assert code == (ErrorCode.INVALID_TXN_STATE if version == V1 else ErrorCode.NONE)


@pytest.mark.parametrize("version", [V1, V2])
async def test_an_abort_takes_back_what_every_node_got(nodes: NodesInOne, version: int) -> None:
    client = Client(nodes, 0, version)
    await client.init()
    await client.write(0, 1)
    assert await client.send_offset(1, 17) == ErrorCode.NONE
    assert await client.end(commit=False) == ErrorCode.NONE
    assert [committed(nodes, one) for one in (0, 1)] == [0, 0]
    assert await committed_offset(nodes, 1) == -1


async def test_data_that_no_transaction_holds_is_refused(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V1)
    await client.init()
    assert await client.produce(1) == ErrorCode.TRANSACTION_ABORTABLE
    client.sequences.clear()
    assert await client.produce(1, version=9) == ErrorCode.INVALID_TXN_STATE
    assert nodes.log(1).log_end_offset == 0


@pytest.mark.parametrize("version", [V1, V2])
async def test_who_names_another_id_writes_into_no_transaction(
    nodes: NodesInOne, version: int
) -> None:
    client = Client(nodes, 0, version)
    await client.init()
    await client.write(0, 1)
    assert await client.send_offset(1, 17) == ErrorCode.NONE
    # As a user would that has rights to an id of its own, coordinated by the same node.
    own = client.transactional_id
    client.transactional_id = next(
        name
        for number in count()
        if nodes.any().nodes.node_of(name := f"another-{number}") == client.coordinator
    )
    for node_id in (0, 1):
        assert await client.produce(node_id) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    code = await client.send_offset(1, 99, adds=False)
    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client.transactional_id = own
    assert await client.end(commit=True) == ErrorCode.NONE
    assert [committed(nodes, one) for one in (0, 1)] == [1, 1]
    assert await committed_offset(nodes, 1) == 17


@pytest.mark.parametrize("version", [V1, V2])
async def test_a_fenced_producer_writes_on_no_node(nodes: NodesInOne, version: int) -> None:
    zombie = Client(nodes, 0, version)
    await zombie.init()
    await zombie.write(1)
    successor = Client(nodes, 0, version)
    await successor.init()
    assert not is_open(nodes, 1)
    end_offset = nodes.log(1).log_end_offset
    assert await zombie.produce(1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await zombie.send_offset(1, 1, adds=False) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert nodes.log(1).log_end_offset == end_offset


@pytest.mark.parametrize("adds", [False, True])
async def test_a_coordinator_answers_its_peers_as_it_answers_data(
    nodes: NodesInOne, adds: bool
) -> None:
    """A node of any release gives its clients the code as it is. PRODUCER_FENCED would end them."""
    zombie, successor = Client(nodes, 0, V1), Client(nodes, 0, V1)
    await zombie.init()
    await successor.init()
    among_peers = nodes.nodes[1].among_peers
    assert among_peers is not None
    partition = TopicPartition("a", nodes.partition(1))
    query = HoldQuery(zombie.transactional_id, zombie.identity, {partition}, adds)
    codes = await among_peers.holds.calls.ask(0, query)
    assert codes == {partition: ErrorCode.INVALID_PRODUCER_EPOCH}


async def test_of_a_request_that_is_refused_the_coordinator_is_asked_once(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.nodes[0].topics.create("wide", 8)
    await nodes.nodes[0].nodes.tell_changes()
    zombie, successor = Client(nodes, 0, V2), Client(nodes, 0, V2)
    await zombie.init()
    await successor.init()
    among_peers = nodes.nodes[1].among_peers
    assert among_peers is not None
    asked: list[HoldQuery] = []
    ask = among_peers.holds.calls.ask

    def noted(node_id: int, query: HoldQuery) -> Awaitable[Codes]:
        asked.append(query)
        return ask(node_id, query)

    monkeypatch.setattr(among_peers.holds.calls, "ask", noted)
    request = zombie.batch(1)
    records = request.topic_data[0].partition_data[0].records
    led = [index for index in range(8) if nodes.any().nodes.leader_of("wide", index) == 1]
    data = [PartitionProduceData(index=index, records=records) for index in led]
    request.topic_data = [TopicProduceData(name="wide", partition_data=data)]
    answer = await (await nodes.client(1)).ask(request, 12, ProduceResponse)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH] * 4
    assert [len(query.partitions) for query in asked] == [4]


async def test_batches_that_a_connection_pipelines_stay_in_their_order(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    connection = await nodes.client(1)
    sent = [connection.send(client.batch(1), 12) for _ in range(5)]
    for correlation_id in sent:
        answered, body = await connection.receive()
        assert answered == correlation_id
        response = ProduceResponse.decode(body[1:], 12)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert nodes.log(1).log_end_offset == 5


async def test_a_node_asks_once_for_a_transaction(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    elsewhere = nodes.nodes[1].services.holds_elsewhere
    assert elsewhere is not None
    for _ in range(5):
        await client.write(1)
    assert elsewhere.calls.call_count == 1
    await client.end(commit=True)
    await client.write(1)
    assert elsewhere.calls.call_count == 2


async def test_a_leader_that_was_told_of_an_add_asks_nothing(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V1)
    await client.init()
    elsewhere = nodes.nodes[1].services.holds_elsewhere
    assert elsewhere is not None
    for _ in range(3):
        await client.write(0, 1)
        assert await client.send_offset(1, 17) == ErrorCode.NONE
        assert await client.end(commit=True) == ErrorCode.NONE
    assert elsewhere.calls.call_count == 0
    assert await client.produce(1) == ErrorCode.TRANSACTION_ABORTABLE, (
        "the marker ends what is held"
    )


async def test_a_verification_tells_all_that_the_transaction_holds_on_the_node(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodePeers, "tell", lambda *_: None)
    client = Client(nodes, 0, V1)
    await client.init()
    elsewhere = nodes.nodes[1].services.holds_elsewhere
    assert elsewhere is not None
    assert await client.add(0, 1) == ErrorCode.NONE
    assert await client.send_offset(1, 17) == ErrorCode.NONE
    assert await client.produce(1) == ErrorCode.NONE
    assert elsewhere.calls.call_count == 1
    assert await client.end(commit=True) == ErrorCode.NONE
    client.sequences[1] = 1
    assert await client.produce(1) == ErrorCode.TRANSACTION_ABORTABLE, (
        "the marker ends what is held"
    )


async def test_the_end_of_version_1_becomes_durable_with_the_next_add_or_soon(
    nodes: NodesInOne,
) -> None:
    client = Client(nodes, 0, V1)
    await client.init()
    await client.write(0, 1)
    assert await client.end(commit=True) == ErrorCode.NONE
    await eventually(lambda: client.state() is State.COMPLETE_COMMIT)
    await client.write(0, 1)
    assert await client.end(commit=True) == ErrorCode.NONE
    assert client.state() is State.PREPARE_COMMIT, "nothing waits for COMPLETE_COMMIT yet"
    assert await client.add(1) == ErrorCode.NONE
    log = nodes.nodes[0].transactions.store.shard_of(client.transactional_id).log
    assert client.state() is State.ONGOING
    assert log.high_watermark == log.log_end_offset, "data may follow on any node"


async def test_a_commit_is_decided_while_a_node_is_down_and_visible_once_it_is_back(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "VISIBLE_TIMEOUT_MS", 50)
    client = Client(nodes, 0, V2)
    await client.init()
    await client.write(0, 1)
    await nodes.kill(1)
    assert await client.end(commit=True) == ErrorCode.NONE
    assert client.state() is State.PREPARE_COMMIT
    assert committed(nodes, 0) == 1
    await nodes.start_node(1)
    await eventually(lambda: committed(nodes, 1) == 1)
    await eventually(lambda: client.state() is State.COMPLETE_COMMIT)


async def test_a_coordinator_that_dies_after_its_decision_brings_the_markers_after_its_start(
    nodes: NodesInOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "VISIBLE_TIMEOUT_MS", 50)
    client = Client(nodes, 0, V1)
    await client.init()
    await client.write(0, 1)
    await nodes.kill(1)
    assert await client.end(commit=True) == ErrorCode.NONE
    await nodes.kill(0)
    await nodes.start_node(1)
    assert is_open(nodes, 1)
    await nodes.start_node(0)
    await eventually(lambda: committed(nodes, 1) == 1)
    await eventually(lambda: client.state() is State.COMPLETE_COMMIT)
    assert committed(nodes, 0) == 1


async def test_data_waits_for_a_coordinator_that_is_down(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    await nodes.kill(0)
    assert await client.produce(1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await client.send_offset(1, 5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert nodes.log(1).log_end_offset == 0
    await nodes.start_node(0)
    client.sequences.clear()
    await client.write(1)
    assert await client.end(commit=True) == ErrorCode.NONE
    assert committed(nodes, 1) == 1


async def test_a_node_that_was_killed_asks_again_for_the_open_transaction(
    nodes: NodesInOne,
) -> None:
    client = Client(nodes, 0, V1)
    await client.init()
    await client.write(0, 1)
    await nodes.kill(1)
    await nodes.start_node(1)
    assert await client.produce(1) == ErrorCode.NONE
    assert await client.end(commit=True) == ErrorCode.NONE
    assert committed(nodes, 1) == 2 and not is_open(nodes, 1)


async def test_a_timeout_ends_a_transaction_on_every_node(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init(timeout_ms=100)
    await client.write(0, 1)
    await eventually(lambda: not is_open(nodes, 0) and not is_open(nodes, 1))
    assert [committed(nodes, one) for one in (0, 1)] == [0, 0]
    assert await client.produce(1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_topic_that_is_deleted_meanwhile_holds_up_no_commit(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    await client.write(0, 1)
    topics = nodes.nodes[0].topics
    topic = topics.by_name("a")
    assert topic is not None
    await topics.deletion.perform([topic])
    assert await client.end(commit=True) == ErrorCode.NONE
    await eventually(lambda: client.state() is State.COMPLETE_COMMIT)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_joint_transaction_ends_on_every_node_at_once(
    nodes: NodesInOne, commits: bool
) -> None:
    parent, child = Client(nodes, 0, V2), Client(nodes, 0, V1)
    child.transactional_id = f"{parent.transactional_id}~>child"
    await parent.init()
    await child.init()
    await child.write(0, 1)
    assert await child.end(commit=True) == ErrorCode.NONE
    assert is_open(nodes, 0) and is_open(nodes, 1), "it is a vote"
    await parent.write(1)
    assert await parent.end(commit=commits) == ErrorCode.NONE
    assert not is_open(nodes, 0) and not is_open(nodes, 1)
    assert [committed(nodes, one) for one in (0, 1)] == ([1, 2] if commits else [0, 0])


async def test_a_separator_that_would_move_ids_to_other_nodes_is_refused_at_the_start(
    nodes: NodesInOne,
) -> None:
    node_of = nodes.any().nodes.node_of
    child_id = next(
        name
        for number in range(100)
        if node_of(name := f"parent-{number}~>c") != node_of_whole(nodes, name)
    )
    home = node_of(child_id)
    request = InitProducerIdRequest(transactional_id=child_id, transaction_timeout_ms=60_000)
    answer = await (await nodes.client(home)).ask(request, 4, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.NONE
    await nodes.kill(home)
    with pytest.raises(ConfigError, match="another node would coordinate"):
        await nodes.start_node(home, {"joint.transactions.separator": ""})


def node_of_whole(nodes: NodesInOne, transactional_id: str) -> int:
    """Return the node of an id in which no separator is looked for."""
    topic = nodes.any().topics.by_name("__transaction_state")
    assert topic is not None
    partition = partition_for(transactional_id, len(topic.partitions))
    leader = nodes.any().nodes.leader_of("__transaction_state", partition)
    assert leader is not None
    return leader


# --- healing


async def test_what_a_coordinator_does_not_answer_for_is_left_alone(nodes: NodesInOne) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    await client.write(1)
    await nodes.kill(0)
    await nodes.nodes[1].healing.sweep()
    assert is_open(nodes, 1)
    await nodes.start_node(0)
    await nodes.nodes[1].healing.sweep()
    assert is_open(nodes, 1), "its transaction is open"
    assert await client.end(commit=True) == ErrorCode.NONE
    assert committed(nodes, 1) == 1


async def test_data_of_a_producer_that_no_coordinator_knows_is_aborted(nodes: NodesInOne) -> None:
    log = nodes.log(1)
    stray = batch_of(b"x", producer_id=77_000, epoch=0, sequence=0, transactional=True)
    log.append(log.check(stray, time.time_ns() // 1_000_000))
    assert is_open(nodes, 1)
    await nodes.nodes[1].healing.sweep()
    assert not is_open(nodes, 1) and committed(nodes, 1) == 0


async def test_data_of_an_outcome_that_its_marker_missed_gets_the_recorded_one(
    nodes: NodesInOne,
) -> None:
    client = Client(nodes, 0, V2)
    await client.init()
    ended = client.identity
    await client.write(0)
    assert await client.end(commit=True) == ErrorCode.NONE
    await eventually(lambda: client.state() is State.COMPLETE_COMMIT)
    # As a crash of the disk could leave it: the batch is there, its add and its marker are not.
    log = nodes.log(1)
    stray = batch_of(
        b"x",
        producer_id=ended.producer_id,
        epoch=ended.producer_epoch,
        sequence=0,
        transactional=True,
    )
    log.append(log.check(stray, time.time_ns() // 1_000_000))
    await nodes.nodes[1].healing.sweep()
    assert not is_open(nodes, 1) and committed(nodes, 1) == 1
    # The marker carries the coordinator's epoch, so the coordinator is not fenced.
    await client.write(1)
    assert await client.end(commit=True) == ErrorCode.NONE
