"""What an attacker on the network would try, by hand: docs/security.md tells of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from magnetar.apis.registry import load_apis
from magnetar.broker import Broker
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.security.principal import user
from magnetar.security.tokens import RENEWERS_MAX, issue
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import RawClient
from wire.error_code import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[RawClient]]
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
_BEFORE_LOGIN = {17, 18, 36}
PASSWORD = "the password of ada"


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "sasl.server.max.receive.size": "5000",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS.format(
                users=f'user_ada="{PASSWORD}" user_root="pw"'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:root",
            "delegation.token.secret.key": "the secret of tokens",
            "listener.name.sasl_plaintext.ssl.keystore.password": "the password of a store",
        }
    )


async def begin(client: RawClient, mechanism: str) -> ErrorCode:
    request = SaslHandshakeRequest(mechanism=mechanism)
    answer = await client.ask(request, 1, SaslHandshakeResponse)
    return ErrorCode(answer.error_code)


async def log_in(client: RawClient, user: str, password: str) -> None:
    assert await begin(client, "PLAIN") is ErrorCode.NONE
    request = SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{password}".encode())
    answer = await client.ask(request, 1, SaslAuthenticateResponse)
    assert answer.error_code == 0


async def test_no_api_is_answered_before_a_login(broker: Broker, connect: Connect) -> None:
    asked = 0
    for key, api in load_apis().items():
        if key in _BEFORE_LOGIN:
            continue
        for version in (api.min_version, api.max_version):
            for is_begun in (False, True):
                client = await connect(broker)
                if is_begun:
                    assert await begin(client, "PLAIN") is ErrorCode.NONE
                client.send(api.request_class(), version)
                assert await client.is_closed(), api.name
                asked += 1
    assert asked > 200


async def test_a_token_over_the_limit_closes_the_connection_unread(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    assert await begin(client, "PLAIN") is ErrorCode.NONE
    # The size alone: nothing of it needs to come.
    client.writer.write((5001).to_bytes(4, "big"))
    assert await client.is_closed()


async def test_a_login_keeps_to_the_mechanism_that_it_began_with(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    assert await begin(client, "SCRAM-SHA-256") is ErrorCode.NONE
    # PLAIN's token where SCRAM's is expected; and another handshake in the middle.
    token = SaslAuthenticateRequest(auth_bytes=f"\0ada\0{PASSWORD}".encode())
    answer = await client.ask(token, 1, SaslAuthenticateResponse)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.is_closed()
    client = await connect(broker)
    assert await begin(client, "SCRAM-SHA-256") is ErrorCode.NONE
    client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert await client.is_closed()


async def test_no_client_writes_to_the_coordinators_topics(
    broker: Broker, connect: Connect
) -> None:
    assert broker.acls is not None
    everything = Acl(
        Resource.TOPIC, "*", Pattern.LITERAL, "User:ada", "*", Operation.ALL, Permission.ALLOW
    )
    broker.acls.add([everything])
    client = await connect(broker)
    await log_in(client, "ada", PASSWORD)
    for name in ("__consumer_offsets", "__transaction_state"):
        data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
        topics = [TopicProduceData(name=name, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)
        answer = await client.ask(request, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code != 0, name


async def test_another_case_or_a_shorter_name_is_another_topic(
    broker: Broker, connect: Connect
) -> None:
    assert broker.acls is not None
    broker.acls.add(
        [
            Acl(Resource.TOPIC, name, pattern, "User:ada", "*", Operation.ALL, Permission.ALLOW)
            for name, pattern in (("Orders", Pattern.LITERAL), ("pay-", Pattern.PREFIXED))
        ]
    )
    names = {"orders": False, "Orders": True, "ORDERS": False, "pay": False, "pay-1": True}
    for name in names:
        broker.topics.ensure(name)
    client = await connect(broker)
    await log_in(client, "ada", PASSWORD)
    data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
    topics = [TopicProduceData(name=name, partition_data=data) for name in names]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)
    answer = await client.ask(request, 9, ProduceResponse)
    assert {
        each.name: each.partition_responses[0].error_code == 0 for each in answer.responses
    } == names


async def test_no_secret_is_in_configs_or_lines(
    broker: Broker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await connect(broker)
    await log_in(client, "root", "pw")
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = await client.ask(request, 4, DescribeConfigsResponse)
    sensitive = [each for each in answer.results[0].configs if each.is_sensitive]
    names = {each.name for each in sensitive}
    assert {"delegation.token.secret.key", "ssl.keystore.password"} <= names
    shown = str(answer) + capsys.readouterr().err
    for secret in (PASSWORD, "the secret of tokens", "the password of a store"):
        assert secret not in shown
    assert all(each.value is None for each in sensitive)
    assert all(synonym.value is None for each in sensitive for synonym in each.synonyms)


async def test_a_client_forges_no_line_and_fills_no_disk(
    broker: Broker, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "x\n2026-11-23 [error] forged " + "y" * 2_000
    client = await connect(broker)
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    client.send(request, 3, client_id="\x1b[31m\nforged")
    assert await client.receive()
    for one in (name, "ada"):
        client = await connect(broker)
        assert await begin(client, "PLAIN") is ErrorCode.NONE
        token = SaslAuthenticateRequest(auth_bytes=f"\0{one}\0wrong".encode())
        client.send(token, 1, client_id=name)
        assert await client.receive()
    written = capsys.readouterr().err
    assert written and "\x1b" not in written
    assert not any(line.startswith(("2026-11-23 [", "forged")) for line in written.splitlines())
    assert max(map(len, written.splitlines())) < 1_500
    assert not [each for each in written.splitlines() if "wrong" in each]
    answer = await (await connect(broker)).ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert answer.error_code == 0


async def test_a_client_of_ipv4_is_under_its_rules_at_a_listener_of_both_kinds(
    start_broker: StartBroker,
) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    listener = {"listeners": "PLAINTEXT://[::]:0", "advertised.listeners": "PLAINTEXT://[::1]:1"}
    broker = await start_broker({"authorizer.class.name": authorizer, **listener})
    assert broker.acls is not None
    broker.acls.add(
        [
            Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:*", host, Operation.ALL, permission)
            for host, permission in (("*", Permission.ALLOW), ("127.0.0.1", Permission.DENY))
        ]
    )
    broker.topics.ensure("t")
    for address, code in (
        ("127.0.0.1", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("::1", ErrorCode.NONE),
    ):
        client = RawClient(*await asyncio.open_connection(address, broker.listeners[0].port))
        data = [PartitionProduceData(index=0, records=bytes(batch_of(b"x")))]
        topics = [TopicProduceData(name="t", partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics)
        answer = await client.ask(request, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == code
        client.close()


async def test_many_tokens_are_described_for_many_owners_at_little_cost(
    broker: Broker, connect: Connect, given_up: list[None]
) -> None:
    assert broker.tokens is not None
    renewers = tuple(user(str(number)) for number in range(RENEWERS_MAX))
    lifetimes = broker.tokens.lifetimes
    for number in range(100):
        owner = user(f"owner {number}")
        token = issue(str(number), owner, owner, renewers, 0, broker.clock.now_ms(), lifetimes)
        broker.tokens.put(token)
    client = await connect(broker)
    await log_in(client, "ada", PASSWORD)
    # 30,000 owners beside 10,000 renewers: by comparing each with each it took a minute.
    named = [
        DescribeDelegationTokenOwner(principal_type="User", principal_name=f"stranger {number}")
        for number in range(30_000)
    ]
    began_s = time.process_time()
    for owners in (
        None,
        named,
        [*named, DescribeDelegationTokenOwner(principal_type="User", principal_name="7")],
    ):
        answer = await client.ask(
            DescribeDelegationTokenRequest(owners=owners), 3, DescribeDelegationTokenResponse
        )
        assert not answer.tokens, "ada may see none"
    assert time.process_time() - began_s < 5
    # With other work in between.
    assert len(given_up) > 100
