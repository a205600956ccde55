"""Nothing that clients do leaves a cycle of objects: `magnetar.server.collecting` relies on it."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from logstore.remote.commit_store import Chunk, Move, Swap
from logstore.remote.store_reads import READS_MAX
from logstore.sync.group_commit import LedgerClosed
from magnetar.broker import Broker
from magnetar.endpoint import parse_endpoint, read_endpoint
from magnetar.peers.dialling import Own
from magnetar.peers.node_peers import NodePeers
from magnetar.runtime.background import WholeWork
from magnetar.runtime.batch_checks import BatchChecks, Steps
from magnetar.runtime.large_messages import LARGE_MESSAGES
from magnetar.runtime.peers import PeerUnreachable
from magnetar.runtime.quotas import Kind
from magnetar.runtime.request_context import Connection, RequestContext
from magnetar.runtime.services import Services
from magnetar.runtime.turns import Turns
from magnetar.server.connection import ClientConnection
from magnetar.storage.whole_changes import WholeChanges
from tests.logstore.partitions import SteppedPartition, batch_of
from tests.logstore.remote.test_offload import World
from tests.magnetar.conftest import RawClient
from tests.magnetar.http_server import HttpServer, answer
from tests.magnetar.nodes_in_one import NodesInOne, two_of
from tests.magnetar.server.test_connection import replace_handler
from tests.magnetar.server.test_quotas import set_quota
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import Message
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

Connect = Callable[[Broker], Awaitable[RawClient]]
_OURS = ("coordinator", "logstore", "magnetar", "wire")


@pytest.fixture(autouse=True)
def garbage() -> Iterator[Callable[[], Counter[str]]]:
    """Collect nothing; return what garbage of ours there is, by its type."""
    gc.collect()
    gc.disable()

    def found() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            types = [type(each) for each in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        return Counter(one.__name__ for one in types if one.__module__.startswith(_OURS))

    yield found
    gc.enable()
    gc.collect()


async def create(client: RawClient, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    answer = await client.ask(CreateTopicsRequest(topics=[topic]), 5, CreateTopicsResponse)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def ask_and_go(broker: Broker, connect: Connect, request: Message, version: int) -> None:
    """Connect ten clients; each sends the request, and closes its connection before the answer.

    Returns once the broker has closed its side of all ten. The caller's own connection stays.
    """
    for _ in range(10):
        other = await connect(broker)
        other.send(request, version)
        await asyncio.sleep(0.01)  # Until the broker waits.
        other.close()
    async with asyncio.timeout(30):
        while broker.server.connection_count > 1:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)  # The step in which a task ends, and those of what it has woken.


@pytest.mark.parametrize("has_quota", [False, True])
@pytest.mark.parametrize(
    "error", [WireError, partial(KafkaError, ErrorCode.INVALID_REQUEST), RuntimeError]
)
@pytest.mark.parametrize("waits_for", ["nothing", "its turn", "a thread", "a task"])
async def test_a_request_that_fails_leaves_no_cycle(
    broker: Broker,
    client: RawClient,
    connect: Connect,
    garbage: Callable[[], Counter[str]],
    error: Callable[[str], Exception],
    waits_for: str,
    has_quota: bool,
) -> None:
    """Each large request that was damaged left one, of 3 MB: the broker grew for ever."""

    def fail() -> None:
        raise error("damaged")

    async def handler(*_: object) -> MetadataResponse:
        if waits_for == "a thread":
            await LARGE_MESSAGES.run(fail)
        elif waits_for == "a task":
            task = asyncio.create_task(asyncio.to_thread(fail))
            await task
        elif waits_for == "its turn":
            await asyncio.sleep(0)
        raise error("damaged")

    if has_quota:
        set_quota(broker, Kind.REQUEST, 10_000)

    replace_handler(broker, MetadataRequest, MetadataResponse, handler)
    await ask_and_go(broker, connect, MetadataRequest(), 9)
    assert not garbage()


async def test_a_request_that_knows_its_task_leaves_no_cycle_when_its_client_goes(
    broker: Broker, client: RawClient, connect: Connect, garbage: Callable[[], Counter[str]]
) -> None:
    """Each large request that waited for its turn left one."""

    async def handler(*_: object) -> None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        await asyncio.Event().wait()
        assert task is None, "it is cancelled before"

    replace_handler(broker, MetadataRequest, MetadataResponse, handler)
    await ask_and_go(broker, connect, MetadataRequest(), 9)
    assert not garbage()


async def test_a_request_that_is_cancelled_before_its_task_runs_leaves_no_cycle(
    broker: Broker, client: RawClient, connect: Connect, garbage: Callable[[], Counter[str]]
) -> None:
    async def handler(_: Services, request: MetadataRequest, context: RequestContext) -> None:
        assert isinstance(context.connection, ClientConnection)
        asyncio.get_running_loop().call_soon(context.connection.abort)
        await asyncio.Event().wait()

    replace_handler(broker, MetadataRequest, MetadataResponse, handler)
    await ask_and_go(broker, connect, MetadataRequest(), 9)
    assert not garbage()


@pytest.mark.parametrize("carry", [WholeWork(lambda _: None).carry, WholeChanges().whole])
async def test_work_that_fails_leaves_no_cycle(
    garbage: Callable[[], Counter[str]], carry: Callable[[Coroutine[Any, Any, None]], Any]
) -> None:
    async def fail() -> None:
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    with suppress(KafkaError):
        await carry(fail())
    await asyncio.sleep(0)  # The step that has ended the work is over.
    assert not garbage()


async def test_a_long_poll_whose_client_goes_leaves_no_cycle(
    broker: Broker, client: RawClient, connect: Connect, garbage: Callable[[], Counter[str]]
) -> None:
    await create(client, "t")
    partition = FetchPartition(partition_max_bytes=100)
    request = FetchRequest(
        max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    await ask_and_go(broker, connect, request, 12)
    assert not garbage()


async def test_a_join_whose_client_goes_leaves_no_cycle(
    broker: Broker, client: RawClient, connect: Connect, garbage: Callable[[], Counter[str]]
) -> None:
    await client.ask(FindCoordinatorRequest(key="g"), 1, FindCoordinatorResponse)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    await ask_and_go(broker, connect, request, 3)
    assert not garbage()


async def test_the_end_of_a_transaction_leaves_no_cycle(
    client: RawClient, garbage: Callable[[], Counter[str]]
) -> None:
    await client.ask(FindCoordinatorRequest(key="x", key_type=1), 1, FindCoordinatorResponse)
    asked = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    who = await client.ask(asked, 4, InitProducerIdResponse)
    await create(client, "t")
    request = EndTxnRequest(
        transactional_id="x",
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        committed=False,
    )
    for _ in range(10):
        for _ in ("first", "again"):  # Nothing is left to wait for the second time.
            answer = await client.ask(request, 5, EndTxnResponse)
            assert answer.error_code == ErrorCode.NONE
        request.producer_epoch = answer.producer_epoch
    assert not garbage()


async def test_a_topic_that_is_written_and_deleted_leaves_no_cycle(
    client: RawClient, garbage: Callable[[], Counter[str]]
) -> None:
    for name in ("a", "b", "c"):
        await create(client, name)
        data = [PartitionProduceData(index=index, records=batch_of(b"x")) for index in (0, 1, 2)]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=name, partition_data=data)],
        )
        answer = await client.ask(request, 9, ProduceResponse)
        codes = [each.error_code for each in answer.responses[0].partition_responses]
        # The third partition does not exist: refusals leave none either.
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        gone = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        await client.ask(gone, 5, DeleteTopicsResponse)
    assert not garbage()


async def test_a_check_that_refuses_a_batch_leaves_no_cycle(
    garbage: Callable[[], Counter[str]],
) -> None:
    """It kept the request, and its batch."""

    async def check() -> None:
        raise KafkaError(ErrorCode.INVALID_RECORD)

    def steps() -> Steps:
        with suppress(KafkaError):
            yield check

    checks = BatchChecks(WholeWork(lambda _: None), Turns())
    await checks.perform(cast("Connection", object()), None, steps(), lambda: None)
    await asyncio.sleep(0)
    assert not garbage()


async def test_what_another_node_refuses_leaves_no_cycle(
    tmp_path: Path, garbage: Callable[[], Counter[str]]
) -> None:
    async with two_of(NodesInOne(tmp_path / "data")) as nodes:
        client = await nodes.client(0)
        # Each connects to the other.
        await commit_offset(client, nodes)
        garbage()
        for _ in range(10):
            await commit_offset(client, nodes)
            request = DescribeTransactionsRequest(transactional_ids=[nodes.transactional_id(1)])
            told = await client.ask(request, 0, DescribeTransactionsResponse)
            assert told.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
        assert not garbage()


async def commit_offset(client: RawClient, nodes: NodesInOne) -> None:
    """Commit an offset at node 0, in a transaction that node 1 has never heard of."""
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        transactional_id=nodes.transactional_id(1),
        group_id=nodes.group_id(0),
        producer_id=12_345,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="a", partitions=[partition])],
    )
    answer = await client.ask(request, 3, TxnOffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


class HungNetwork:
    """Every peer's host takes a connection, and says no more."""

    async def listen(self, accept: Callable[[], asyncio.Protocol]) -> None:
        raise AssertionError("a peer that is only called does not listen")

    async def dial(self, node_id: int, protocol: asyncio.Protocol) -> None:
        await asyncio.sleep(60)

    def close(self) -> None:
        pass


async def test_a_peer_that_hangs_leaves_no_cycle(garbage: Callable[[], Counter[str]]) -> None:
    """One that is down for a day is dialled every five seconds."""
    peers = NodePeers(Own("cluster", 1, 0), b"secret", HungNetwork(), tuple, call_timeout_s=0.01)
    with suppress(PeerUnreachable):
        await peers.call(2, EndTxnRequest(), 4)
    await asyncio.sleep(0)
    assert not garbage()
    peers.close()


async def test_topics_that_are_refused_leave_no_cycle(
    broker: Broker, garbage: Callable[[], Counter[str]]
) -> None:
    rows = [broker.topics.new_row("same", 1, 1, {}) for _ in range(2)]
    created, refused = await broker.topics.create_together(rows)
    assert isinstance(refused, KafkaError), created
    del created, refused
    assert not garbage()


async def test_a_log_that_is_closed_while_its_batches_are_synced_leaves_no_cycle(
    garbage: Callable[[], Counter[str]],
) -> None:
    partition = SteppedPartition()
    partition.append(b"x")
    waiting = asyncio.ensure_future(partition.log.durable(1))
    await asyncio.sleep(0)
    partition.log.close()
    with suppress(LedgerClosed):
        await waiting
    with suppress(LedgerClosed):
        partition.log.ledger.check_open()
    with suppress(LedgerClosed):
        await partition.log.durable(1)
    del waiting, partition
    await asyncio.sleep(0)  # The step that has ended the work is over.
    assert "LedgerClosed" not in garbage()


async def test_a_log_of_a_cluster_leaves_no_cycle_when_it_is_closed(
    garbage: Callable[[], Counter[str]],
) -> None:
    """Each partition that was deleted, or moved to another node, left one: with its log."""
    world = await asyncio.to_thread(World)
    world.append(2)
    world.ledger.close()
    swap = world.ledger.segments.perform_swap(cast("Swap", None), b"", lambda: None)
    assert not await swap, "nothing is written any more"
    del swap
    del world
    assert "RemoteLedger" not in garbage()


async def test_a_read_of_a_bucket_that_is_away_leaves_no_cycle(
    garbage: Callable[[], Counter[str]],
) -> None:
    world = await asyncio.to_thread(World)
    world.append(2)
    world.stepped.reads.count = READS_MAX
    world.ledger._hot.forget_below(2)
    with suppress(KafkaError):
        await world.read(0)
    assert "KafkaError" not in garbage()
    world.ledger.close()


async def test_a_move_to_an_object_that_is_given_up_leaves_no_cycle(
    garbage: Callable[[], Counter[str]],
) -> None:
    world = await asyncio.to_thread(World)
    world.append(2)
    key = world.ledger.key
    move = Move(key, 0, 2, (Chunk(key, 0, 2, b"".join(world.batches)),))
    moving = asyncio.ensure_future(world.ledger.move(move, world.ledger.replacements))
    await asyncio.sleep(0)
    world.stepped.executor.step()  # The commit is under way.
    world.ledger.close()
    with suppress(LedgerClosed):
        await moving
    world.stepped.executor.run()
    del moving
    await asyncio.sleep(0)  # The step that has ended the work is over.
    assert "LedgerClosed" not in garbage()


async def test_a_pass_of_the_cleaner_that_fails_leaves_no_cycle(
    broker: Broker, garbage: Callable[[], Counter[str]]
) -> None:
    """With a full disk each of its rounds left one, and what the pass had in memory."""

    def fail() -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    with suppress(KafkaError):
        await broker.cleaner._in_thread(fail)
    await asyncio.sleep(0.01)  # The thread lets go of the work.
    assert not garbage()


def test_an_answer_of_an_endpoint_leaves_no_cycle(garbage: Callable[[], Counter[str]]) -> None:
    with HttpServer(answer(b"{}")) as server:
        read_endpoint(parse_endpoint(server.url), ssl.create_default_context)
    assert not garbage()


@pytest.mark.parametrize("do_close_late", [False, True])
async def test_a_connection_that_a_quota_mutes_leaves_no_cycle(
    broker: Broker,
    client: RawClient,
    connect: Connect,
    garbage: Callable[[], Counter[str]],
    do_close_late: bool,
) -> None:
    """Also where connections come too fast, and are closed late."""
    await create(client, "t")
    if do_close_late:
        set_quota(broker, Kind.CONNECTION, 1, [("ip", "127.0.0.1")])
    else:
        set_quota(broker, Kind.REQUEST, 0.000001)
    for _ in range(2):  # The first ones are within the quota.
        await ask_and_go(broker, connect, MetadataRequest(), 9)
    assert not garbage()
