"""Requests that name things which the client may not know of, or not touch, beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.apis.authorization import Each, denied
from magnetar.apis.leased import Lease, leased
from magnetar.apis.registry import Api, load_apis
from magnetar.broker import Broker
from magnetar.runtime.large_messages import ELEMENTS_AT_ONCE
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.messages import list_offsets, offset_commit, offset_delete
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import SimpleRecord, build_batch
from wire.schema import fields_of
from wire.transaction_tags import CHILDREN_TAG, decode_children
from wire.types import Array, Nested

Connect = Callable[[Broker], Awaitable[RawClient]]
APIS = {api.name: api for api in load_apis().values()}
#: The APIs of which a list is looked at thing by thing.
LISTS = [(name, need) for name, api in APIS.items() for need in api.needs if isinstance(need, Each)]


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """Has the topics `mine` and `secret`; clients may use the one, and the group `group`."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    broker = await start_broker({"authorizer.class.name": authorizer})
    assert broker.acls is not None
    broker.acls.add(
        [
            Acl(kind, name, Pattern.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
            for kind, name in ((Resource.TOPIC, "mine"), (Resource.GROUP, "group"))
        ]
    )
    broker.topics.create("mine", 2, 1)
    broker.topics.create("secret", 2, 1)
    return broker


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pages_of_topics_do_not_tell_which_denied_ones_exist(
    broker: Broker, connect: Connect, limit: int
) -> None:
    client = await connect(broker)
    told = []
    for denied_one in ("secret", "none"):
        topics = [TopicRequest(name=name) for name in (denied_one, "mine")]
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit)
        pages: list[list[tuple[str | None, int, int]]] = []
        # A client asks for the next page until there is none.
        while not pages or request.cursor is not None:
            page = await client.ask(request, 0, DescribeTopicPartitionsResponse)
            at = page.next_cursor
            request.cursor = None
            if at is not None:
                request.cursor = Cursor(
                    topic_name=at.topic_name, partition_index=at.partition_index
                )
            pages.append(
                [(each.name, each.error_code, len(each.partitions)) for each in page.topics]
            )
            assert len(pages) < 9
        names = [[(name == "mine", *rest) for name, *rest in page] for page in pages]
        assert sum(len(page) for page in names) >= 2
        told.append(sorted(entry for page in names for entry in page))
    assert told[0] == told[1]
    assert told[0][0] == (False, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)


@pytest.mark.parametrize(
    ("group_ids", "told"),
    [
        (["a"], ["DESCRIBE on GROUP a is denied"]),
        (["a", "group", "b"], [*2 * ["DESCRIBE on GROUP is denied"], "Group group not found."]),
    ],
)
async def test_a_refusal_names_no_other_thing_than_the_refused_one(
    broker: Broker, connect: Connect, group_ids: list[str], told: list[str]
) -> None:
    client = await connect(broker)
    request = ConsumerGroupDescribeRequest(group_ids=group_ids)
    answer = await client.ask(request, 1, ConsumerGroupDescribeResponse)
    assert sorted(each.error_message or "" for each in answer.groups) == told


@pytest.mark.parametrize(
    ("denied_one", "code"),
    [("later", ErrorCode.NONE), ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
async def test_a_group_is_shown_unless_a_denied_topic_is_assigned(
    broker: Broker, connect: Connect, denied_one: str, code: ErrorCode
) -> None:
    """As in Kafka: a name that a member subscribes to, of a topic that does not exist, is shown."""
    assert broker.acls is not None
    client = await connect(broker)
    anyone = ("User:*", "*", Operation.ALL, Permission.ALLOW)
    may_know = [Acl(Resource.TOPIC, denied_one, Pattern.LITERAL, *anyone)]
    broker.acls.add(may_know)
    joining = ConsumerGroupHeartbeatRequest(
        group_id="group",
        member_id="one",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[denied_one, "mine"],
        topic_partitions=[],
    )
    joined = await client.ask(joining, 1, ConsumerGroupHeartbeatResponse)
    assert joined.error_code == ErrorCode.NONE
    broker.acls.remove(may_know)
    request = ConsumerGroupDescribeRequest(group_ids=["group"])
    (group,) = (await client.ask(request, 1, ConsumerGroupDescribeResponse)).groups
    assert group.error_code == code
    names = [[denied_one, "mine"]] if code == ErrorCode.NONE else []
    assert [each.subscribed_topic_names for each in group.members] == names


async def test_a_pattern_is_matched_again_when_rights_have_changed(
    broker: Broker, connect: Connect
) -> None:
    assert broker.acls is not None
    client = await connect(broker)
    joining = ConsumerGroupHeartbeatRequest(
        group_id="group",
        member_id="one",
        rebalance_timeout_ms=1_000,
        subscribed_topic_regex="secr.*",
        topic_partitions=[],
    )
    answer = await client.ask(joining, 1, ConsumerGroupHeartbeatResponse)
    anyone = ("User:*", "*", Operation.ALL, Permission.ALLOW)
    rights = [Acl(Resource.TOPIC, "secret", Pattern.LITERAL, *anyone)]
    for change, partitions in ((broker.acls.add, 2), (broker.acls.remove, 0)):
        change(rights)
        assigned = None
        async with asyncio.timeout(10):
            # Matched beside the heartbeats, once a second at most.
            while assigned is None or sum(len(each.partitions) for each in assigned) != partitions:
                beat = ConsumerGroupHeartbeatRequest(
                    group_id="group", member_id="one", member_epoch=answer.member_epoch
                )
                answer = await client.ask(beat, 1, ConsumerGroupHeartbeatResponse)
                assert answer.error_code == ErrorCode.NONE
                assigned = None if answer.assignment is None else answer.assignment.topic_partitions
                await asyncio.sleep(0.01)


async def test_what_has_no_configs_is_refused_before_rights_are_looked_at(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    resources = [
        DescribeConfigsResource(resource_type=each, resource_name="secret") for each in (2, 3)
    ]
    request = DescribeConfigsRequest(resources=resources)
    answer = await client.ask(request, 4, DescribeConfigsResponse)
    assert [each.error_code for each in answer.results] == 2 * [ErrorCode.INVALID_REQUEST]


async def test_offsets_of_denied_topics_are_not_deleted_and_said_so(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    partition = offset_commit.OffsetCommitRequestPartition(committed_offset=5)
    topic = offset_commit.OffsetCommitRequestTopic(name="mine", partitions=[partition])
    committing = offset_commit.OffsetCommitRequest(group_id="group", topics=[topic])
    await client.ask(committing, 8, offset_commit.OffsetCommitResponse)
    request = offset_delete.OffsetDeleteRequest(
        group_id="group",
        topics=[
            offset_delete.OffsetDeleteRequestTopic(
                name=name, partitions=[offset_delete.OffsetDeleteRequestPartition()]
            )
            for name in ("secret", "mine", "none")
        ],
    )
    answer = await client.ask(request, 0, offset_delete.OffsetDeleteResponse)
    assert answer.error_code == ErrorCode.NONE
    assert {each.name: each.partitions[0].error_code for each in answer.topics} == {
        "mine": ErrorCode.NONE,
        "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "none": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    # Of a whole request Kafka says it at the top alone.
    request.group_id = "another"
    answer = await client.ask(request, 0, offset_delete.OffsetDeleteResponse)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])


async def test_a_large_commit_beside_a_denied_topic_is_done(
    broker: Broker, connect: Connect
) -> None:
    """A handler that is a plain function may go on in a task: here since the commit is large."""
    client = await connect(broker)
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(partition_index=index % 2)
                for index in range(count)
            ],
        )
        for name, count in (("secret", 1), ("mine", ELEMENTS_AT_ONCE + 1))
    ]
    request = offset_commit.OffsetCommitRequest(group_id="group", topics=topics)
    answer = await client.ask(request, 8, offset_commit.OffsetCommitResponse)
    assert {
        topic.name: {each.error_code for each in topic.partitions} for topic in answer.topics
    } == {
        "mine": {ErrorCode.NONE},
        "secret": {ErrorCode.TOPIC_AUTHORIZATION_FAILED},
    }


async def test_a_denied_thing_is_refused_where_a_node_proves_first_that_it_leads(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster, where handlers of what is read wait for a commit."""
    apis = cast("dict[int, Api]", broker.server.dispatcher._apis)
    proven = leased(apis, cast("Lease", SimpleNamespace(is_leased=True, proven=_soon)))
    monkeypatch.setattr(broker.server.dispatcher, "_apis", {**apis, **proven})
    client = await connect(broker)
    for names in (["secret"], ["mine", "secret"]):
        topics = [
            list_offsets.ListOffsetsTopic(
                name=name, partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)]
            )
            for name in names
        ]
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)
        answer = await client.ask(request, 5, list_offsets.ListOffsetsResponse)
        assert {each.name: each.partitions[0].error_code for each in answer.topics} == {
            name: ErrorCode.NONE if name == "mine" else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for name in names
        }


async def _soon() -> None:
    await asyncio.sleep(0)


async def test_a_producer_without_answers_is_denied_by_the_end_of_its_connection(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    data = [PartitionProduceData(index=0, records=build_batch([SimpleRecord(None, b"a", 1_000)]))]
    topics = [TopicProduceData(name="mine", partition_data=data)]
    request = ProduceRequest(transactional_id="tx", acks=0, timeout_ms=5_000, topic_data=topics)
    client.send(request, 9)
    assert await client.is_closed()


async def test_a_transaction_writes_no_marker_to_a_denied_topic(
    broker: Broker, connect: Connect
) -> None:
    assert broker.acls is not None
    anyone = (Pattern.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
    broker.acls.add([Acl(Resource.TRANSACTIONAL_ID, "tx", *anyone)])
    client = await connect(broker)
    asked = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    given = await client.ask(asked, 4, InitProducerIdResponse)
    batch = build_batch(
        [SimpleRecord(None, b"apple", 1_000)],
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=name, partition_data=data) for name in ("mine", "secret")]
    request = ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=5_000, topic_data=topics)
    produced = await client.ask(request, 12, ProduceResponse)
    assert [each.partition_responses[0].error_code for each in produced.responses] == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    ending = EndTxnRequest(
        transactional_id="tx",
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
        committed=True,
    )
    ended = await client.ask(ending, 5, EndTxnResponse)
    assert ended.error_code == ErrorCode.NONE
    ends = [broker.topics.partition(name, 0).log_end_offset for name in ("mine", "secret")]
    assert ends == [2, 0]


@pytest.mark.parametrize(("name", "need"), LISTS, ids=[name for name, _ in LISTS])
def test_a_denied_thing_is_named_in_the_answer(name: str, need: Each) -> None:
    api = APIS[name]
    for version in range(api.min_version, api.max_version + 1):
        request = request_of_one(api, need.field)
        error = denied(need.operation, need.resource, "x")
        response: Any = api.refuse(request, version, error)
        lists = [getattr(response, each) for each in type(response)._declared]
        assert [len(each) for each in lists if isinstance(each, list) and each] == [1]


def request_of_one(api: Api, field: str) -> Any:
    """Return a request with one thing in a list."""
    (declared,) = (each for each in fields_of(api.request_class) if each.name == field)
    assert isinstance(declared.type, Array)
    element = declared.type.element
    thing = element.struct() if isinstance(element, Nested) else "x"
    request = api.request_class()
    setattr(request, field, [thing])
    return request


async def test_a_parent_names_the_children_alone_that_a_client_may_describe(
    broker: Broker, connect: Connect
) -> None:
    assert broker.acls is not None
    rules = {
        name: Acl(
            Resource.TRANSACTIONAL_ID,
            name,
            Pattern.LITERAL,
            "User:*",
            "*",
            Operation.ALL,
            Permission.ALLOW,
        )
        for name in ("p", "p~>mine", "p~>secret")
    }
    broker.acls.add(list(rules.values()))
    client = await connect(broker)
    for child in ("p~>mine", "p~>secret"):
        asked = InitProducerIdRequest(transactional_id=child, transaction_timeout_ms=60_000)
        given = await client.ask(asked, 4, InitProducerIdResponse)
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=child,
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="mine", partitions=[0])],
        )
        await client.ask(adding, 3, AddPartitionsToTxnResponse)

    async def children() -> list[str]:
        request = DescribeTransactionsRequest(transactional_ids=["p"])
        answer = await client.ask(request, 0, DescribeTransactionsResponse)
        tags = dict(answer.transaction_states[0].unknown_tags)
        return decode_children(tags.get(CHILDREN_TAG, b""))

    assert await children() == ["p~>mine", "p~>secret"]
    broker.acls.remove([rules["p~>secret"]])
    assert await children() == ["p~>mine"]
    broker.acls.remove([rules["p~>mine"]])
    assert await children() == []
