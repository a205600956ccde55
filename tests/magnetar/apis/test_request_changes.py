"""What one request of administration may change: so much, and nothing at all of one for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.apis import delete_acls as delete_acls_handler
from magnetar.apis import request_changes
from magnetar.broker import Broker
from magnetar.security.acls import Acl, Operation, Pattern, Permission, Resource
from magnetar.storage import acls as stored_acls
from magnetar.storage import client_quotas, scram_credentials
from magnetar.storage.acls import STANDARD_AUTHORIZER, Acls
from tests.magnetar.conftest import RawClient, StartBroker
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    incremental_alter_configs,
)
from wire.resource_type import ResourceType

MAX = 4
EXCESSIVE = (44, "Unable to perform excessively large batch operation.")
#: So many are stored in several parts.
PARTS = 600


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(
        {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    )


def acls_of(broker: Broker) -> Acls:
    assert broker.acls is not None
    return broker.acls


def names(count: int) -> list[str]:
    return [f"name-{number}" for number in range(count)]


def topics(count: int) -> Message:
    """Return a request for a topic, a partition and configs: so many in all."""
    configs = [create_topics.CreatableTopicConfig(name=name, value="1") for name in names(count)]
    topic = create_topics.CreatableTopic(
        name="a", num_partitions=1, replication_factor=1, configs=configs[: count - 2]
    )
    return create_topics.CreateTopicsRequest(topics=[topic])


def partitions(count: int) -> Message:
    return create_partitions.CreatePartitionsRequest(
        topics=[
            create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None)
            for name in names(count)
        ]
    )


def rules(count: int) -> Message:
    return create_acls.CreateAclsRequest(
        creations=[
            create_acls.AclCreation(
                resource_type=Resource.TOPIC,
                resource_name=name,
                principal="User:ada",
                host="*",
                operation=Operation.READ,
                permission_type=Permission.ALLOW,
            )
            for name in names(count)
        ]
    )


def removals(count: int, *, of: str | None = "") -> Message:
    """Filters for rules about as many topics, or for those about `of`; None: for all rules."""
    return delete_acls.DeleteAclsRequest(
        filters=[
            delete_acls.DeleteAclsFilter(
                resource_type_filter=Resource.ANY,
                resource_name_filter=name if of == "" else of,
                pattern_type_filter=Pattern.ANY,
                principal_filter=None,
                host_filter=None,
                operation=Operation.ANY,
                permission_type=Permission.ANY,
            )
            for name in names(count)
        ]
    )


def users(count: int) -> Message:
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        deletions=[
            alter_user_scram_credentials.ScramCredentialDeletion(name="gone", mechanism=1),
        ],
        upsertions=[
            alter_user_scram_credentials.ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"s" * 32
            )
            for name in names(count - 1)
        ],
    )


def quotas(count: int, *, per_entity: int = 2) -> Message:
    keys = ["producer_byte_rate", "consumer_byte_rate"][:per_entity]
    ops = [alter_client_quotas.OpData(key=key, value=5.0) for key in keys]
    entries = [
        alter_client_quotas.EntryData(
            entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=name)], ops=ops
        )
        for name in names(count // per_entity)
    ]
    entries += [alter_client_quotas.EntryData()] * (count % per_entity)
    return alter_client_quotas.AlterClientQuotasRequest(entries=entries)


def quota_of_parts(count: int) -> Message:
    """Return a request for one quota, of an entity of so many parts and one."""
    parts = [alter_client_quotas.EntityData(entity_type=name) for name in names(count + 1)]
    ops = [alter_client_quotas.OpData(key="producer_byte_rate", value=5.0)]
    entry = alter_client_quotas.EntryData(entity=parts, ops=ops)
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry])


def configs(count: int) -> Message:
    changes = [
        incremental_alter_configs.AlterableConfig(name=name, value="1") for name in names(count - 1)
    ]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=ResourceType.GROUP, resource_name=name, configs=each
            )
            for name, each in (("a", changes), ("b", []))
        ]
    )


def all_configs(count: int) -> Message:
    return alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=name)
            for name in names(count)
        ]
    )


def deletions(count: int) -> Message:
    states = [delete_topics.DeleteTopicState(name=name) for name in names(count)]
    return delete_topics.DeleteTopicsRequest(topics=states)


def deletions_by_name(count: int) -> Message:
    return delete_topics.DeleteTopicsRequest(topic_names=names(count))


Make = Callable[[int], Message]
REQUESTS: list[tuple[Make, int, type[Message], str]] = [
    (topics, 7, create_topics.CreateTopicsResponse, "topics"),
    (partitions, 3, create_partitions.CreatePartitionsResponse, "results"),
    (rules, 3, create_acls.CreateAclsResponse, "results"),
    (removals, 3, delete_acls.DeleteAclsResponse, "filter_results"),
    (users, 0, alter_user_scram_credentials.AlterUserScramCredentialsResponse, "results"),
    (quotas, 1, alter_client_quotas.AlterClientQuotasResponse, "entries"),
    (quota_of_parts, 1, alter_client_quotas.AlterClientQuotasResponse, "entries"),
    (configs, 1, incremental_alter_configs.IncrementalAlterConfigsResponse, "responses"),
    (all_configs, 2, alter_configs.AlterConfigsResponse, "responses"),
    (deletions, 6, delete_topics.DeleteTopicsResponse, "responses"),
    (deletions_by_name, 5, delete_topics.DeleteTopicsResponse, "responses"),
]


@pytest.mark.parametrize(
    ("make", "version", "response", "field"),
    REQUESTS,
    ids=lambda each: getattr(each, "__name__", each),
)
async def test_a_request_for_too_many_changes_does_nothing(
    broker: Broker,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    version: int,
    response: type[Message],
    field: str,
) -> None:
    monkeypatch.setattr(request_changes, "CHANGES_MAX", MAX)
    before = broker.catalog.changes.count()
    answer: Any = await client.ask(make(MAX + 1), version, response)
    results = getattr(answer, field)
    assert {(each.error_code, each.error_message) for each in results} == {EXCESSIVE}
    assert broker.catalog.changes.count() == before
    answer = await client.ask(make(MAX), version, response)
    assert EXCESSIVE not in {
        (each.error_code, each.error_message) for each in getattr(answer, field)
    }


async def test_no_request_removes_more_rules_than_it_may_change(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_acls_handler, "CHANGES_MAX", MAX)
    await client.ask(rules(MAX + 1), 3, create_acls.CreateAclsResponse)
    every = acls_of(broker).all()
    assert len(every) == MAX + 1
    answer = await client.ask(removals(2, of=None), 3, delete_acls.DeleteAclsResponse)
    refused = (42, f"Cannot remove more than {MAX} acls in a single delete operation.")
    found = [(each.error_code, each.error_message) for each in answer.filter_results]
    assert found == [refused, refused]
    assert acls_of(broker).all() == every
    answer = await client.ask(removals(MAX), 3, delete_acls.DeleteAclsResponse)
    assert [len(each.matching_acls) for each in answer.filter_results] == [1] * MAX
    assert acls_of(broker).all() == every[MAX:]


async def test_many_rules_are_made_and_removed(broker: Broker, client: RawClient) -> None:
    answer = await client.ask(rules(PARTS), 3, create_acls.CreateAclsResponse)
    assert [each.error_code for each in answer.results] == [0] * PARTS
    assert [each.name for each in acls_of(broker).all()] == names(PARTS)
    assert len(broker.catalog.acls()) == PARTS
    removed = await client.ask(removals(1, of=None), 3, delete_acls.DeleteAclsResponse)
    assert len(removed.filter_results[0].matching_acls) == PARTS
    assert acls_of(broker).all() == ()
    assert broker.catalog.acls() == []


async def test_many_rules_that_have_no_room_are_refused_together(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_acls, "ACLS_MAX", PARTS - 1)
    answer = await client.ask(rules(PARTS), 3, create_acls.CreateAclsResponse)
    assert {each.error_code for each in answer.results} == {ErrorCode.POLICY_VIOLATION}
    assert acls_of(broker).all() == ()
    # A rule that exists needs no room.
    for _ in range(2):
        answer = await client.ask(rules(PARTS - 1), 3, create_acls.CreateAclsResponse)
        assert {each.error_code for each in answer.results} == {0}


@pytest.mark.parametrize(("name", "pattern"), [("name", 2), ("name-x", 2), ("*", 4), ("*", 3)])
async def test_rules_are_found_by_name_and_by_what_they_are_about(
    broker: Broker, client: RawClient, name: str, pattern: int
) -> None:
    """A filter for what is about a resource finds rules of other names, others do not."""
    kept = Acl(
        Resource.TOPIC, "other", Pattern.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW
    )
    found = [
        kept._replace(name="name", pattern=Pattern.PREFIXED),
        kept._replace(name="name"),
        kept._replace(name="*"),
    ]
    acls_of(broker).add([kept, *found])
    request: Any = removals(1, of=name)
    request.filters[0].pattern_type_filter = pattern
    wanted = {
        ("name", 2): [found[0], found[1], found[2]],
        ("name-x", 2): [found[0], found[2]],
        ("*", 4): [],
        ("*", 3): [found[2]],
    }[name, pattern]
    await client.ask(request, 3, delete_acls.DeleteAclsResponse)
    assert set(acls_of(broker).all()) == {kept, *found} - set(wanted)


async def test_many_users_have_credentials_after_one_request(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may, the first of them; what has no room is refused alone."""
    monkeypatch.setattr(scram_credentials, "USERS_MAX", PARTS - 50)
    response = alter_user_scram_credentials.AlterUserScramCredentialsResponse
    for _ in range(2):
        answer = await client.ask(users(PARTS + 1), 0, response)
        codes = {each.user: each.error_code for each in answer.results}
        assert codes.pop("gone") == ErrorCode.RESOURCE_NOT_FOUND
        assert list(codes.values()) == [0] * (PARTS - 50) + [ErrorCode.POLICY_VIOLATION] * 50
    kept = broker.authentication.credentials
    assert set(kept.users()) == set(names(PARTS - 50))
    assert {each[0] for each in broker.catalog.scram_credentials()} == set(kept.users())


async def test_many_entities_have_quotas_after_one_request(
    broker: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may, the first of them; what has no room is refused alone."""
    monkeypatch.setattr(client_quotas, "ENTITIES_MAX", PARTS - 50)
    response = alter_client_quotas.AlterClientQuotasResponse
    for _ in range(2):
        answer = await client.ask(quotas(PARTS, per_entity=1), 1, response)
        codes = [each.error_code for each in answer.entries]
        assert codes == [0] * (PARTS - 50) + [ErrorCode.POLICY_VIOLATION] * 50
    assert len(broker.catalog.client_quotas()) == PARTS - 50


async def test_users_and_entities_have_names_of_a_bounded_length(
    broker: Broker, client: RawClient
) -> None:
    """All of them are in memory: 2,000 of 32 KB took 319 and 263 MB."""
    lengths = {"n" * 1024: ErrorCode.NONE, "n" * 1025: ErrorCode.POLICY_VIOLATION}
    of_users = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        upsertions=[
            alter_user_scram_credentials.ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
            )
            for name in lengths
        ]
    )
    said = await client.ask(
        of_users, 0, alter_user_scram_credentials.AlterUserScramCredentialsResponse
    )
    assert {each.user: each.error_code for each in said.results} == lengths
    of_entities = alter_client_quotas.AlterClientQuotasRequest(
        entries=[
            alter_client_quotas.EntryData(
                entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=name)],
                ops=[alter_client_quotas.OpData(key="consumer_byte_rate", value=1.0)],
            )
            for name in lengths
        ]
    )
    answer = await client.ask(of_entities, 1, alter_client_quotas.AlterClientQuotasResponse)
    assert [each.error_code for each in answer.entries] == [*lengths.values()]


async def test_an_acl_has_texts_of_a_bounded_length(broker: Broker, client: RawClient) -> None:
    """All of them are in memory: a bound on their number alone does not bound it."""
    fits, too_long = "n" * 1024, "n" * 1025
    asked = [
        create_acls.AclCreation(
            resource_type=Resource.TOPIC,
            resource_name=name,
            principal=f"User:{user}",
            host=host,
            operation=Operation.READ,
            permission_type=Permission.ALLOW,
        )
        for name, user, host in [
            (fits, fits[5:], fits),
            (too_long, "ada", "*"),
            ("a", too_long[5:], "*"),
            ("a", "ada", too_long),
        ]
    ]
    request = create_acls.CreateAclsRequest(creations=asked)
    said = await client.ask(request, 3, create_acls.CreateAclsResponse)
    refused = ErrorCode.POLICY_VIOLATION
    assert [each.error_code for each in said.results] == [ErrorCode.NONE, *[refused] * 3]
    (kept,) = acls_of(broker).all()
    assert kept.name == fits


@pytest.mark.parametrize(("salt", "salted"), [(b"s" * 1025, b"p"), (b"s", b"p" * 1025)])
async def test_a_credential_that_every_login_would_be_slow_by_is_refused(
    broker: Broker, client: RawClient, salt: bytes, salted: bytes
) -> None:
    """The answer to a login has a salt as long as some user's, also for a name that is none."""
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        name="a", mechanism=1, iterations=4096, salt=salt, salted_password=salted
    )
    answer = await client.ask(
        alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion]),
        0,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
    )
    assert [each.error_code for each in answer.results] == [ErrorCode.UNACCEPTABLE_CREDENTIAL]
