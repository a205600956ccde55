"""What each ACL alone allows: every API in every version, asked of magnetar and Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from kafka.protocol.admin import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

from compat_tests import access_frames, command_line, token_frames
from compat_tests.access_frames import (
    CONSUMER_GROUP,
    GROUP,
    MISSING_TOPIC,
    PREFIX,
    TOPIC,
    TRANSACTIONAL_ID,
    Access,
)
from compat_tests.admin import create_topic
from compat_tests.answers import comparable
from compat_tests.brokers import LONG_LIVED, Broker, make_broker
from compat_tests.consumer_group_frames import ConsumerMember
from compat_tests.offsets import commit
from compat_tests.plain_login import plain_connection
from compat_tests.raw import Connection
from compat_tests.secured import STANDARD_AUTHORIZER
from compat_tests.token_frames import TokenRefused
from compat_tests.waiting import eventually

TIMEOUT_S = 60.0
#: Codes of ACLs: a kind of resource, a kind of pattern, any operation or permission.
TOPIC_RESOURCE, LITERAL, ANY = 2, 3, 1
UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED = 3, 29
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Some are no operations of their resources, and allow to describe these all the same.
_OPERATIONS = {
    ResourceType.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"
    " ALL",
    ResourceType.GROUP: "READ DELETE DESCRIBE WRITE ALL",
    ResourceType.TRANSACTIONAL_ID: "WRITE DESCRIBE READ ALL",
    ResourceType.BROKER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS"
    " IDEMPOTENT_WRITE DELETE ALL",
}


class Rule(NamedTuple):
    """What a user is allowed on one kind of resource, and denied of it; None: nothing at all."""

    resource: ResourceType | None
    operation: str = ""
    denied: str = ""

    @property
    def user(self) -> str:
        if self.resource is None:
            return "none"
        return f"{self.resource.name}-{self.operation}" + (self.denied and f"-but-{self.denied}")

    def bindings(self) -> list[AclBinding]:
        if self.resource is None:
            return []
        allowed = self._binding(self.operation, AclPermissionType.ALLOW)
        if not self.denied:
            return [allowed]
        return [allowed, self._binding(self.denied, AclPermissionType.DENY)]

    def _binding(self, operation: str, permission: AclPermissionType) -> AclBinding:
        assert self.resource is not None
        is_cluster = self.resource is ResourceType.BROKER
        return AclBinding(
            self.resource,
            "kafka-cluster" if is_cluster else PREFIX,
            ResourcePatternType.LITERAL if is_cluster else ResourcePatternType.PREFIXED,
            f"User:{self.user}",
            "*",
            AclOperation[operation],
            permission,
        )


RULES = [
    Rule(None),
    *(
        Rule(resource, operation)
        for resource, operations in _OPERATIONS.items()
        for operation in operations.split()
    ),
    Rule(ResourceType.TOPIC, "ALL", denied="READ"),
    Rule(ResourceType.TOPIC, "ALL", denied="DESCRIBE"),
    Rule(ResourceType.TOPIC, "READ", denied="DESCRIBE"),
    Rule(ResourceType.TOPIC, "READ", denied="ALL"),
    Rule(ResourceType.GROUP, "ALL", denied="READ"),
    Rule(ResourceType.GROUP, "READ", denied="DESCRIBE"),
    Rule(ResourceType.TRANSACTIONAL_ID, "ALL", denied="WRITE"),
    Rule(ResourceType.BROKER, "ALL", denied="DESCRIBE"),
]


#: What an ACL may say of tokens: a kind of resource, as the command line has it, and an operation.
TOKEN_RULES = {
    f"{option.strip('-')}-{operation}": (option, operation)
    for option, operations in (
        ("--user-principal", "CREATE_TOKENS DESCRIBE_TOKENS ALL"),
        ("--delegation-token", "DESCRIBE ALL"),
    )
    for operation in operations.split()
}
#: Each user of a refused request is named here; Kafka's refusal has one without a name.
NAMING_USERS = {"DescribeUserScramCredentials", "AlterUserScramCredentials"}
#: Has tokens. The others have none, or their own, and each what one ACL allows.
OWNER = f"{PREFIX}owner"
TOKEN_USERS = (*(rule.user for rule in RULES), *TOKEN_RULES)
#: Has rules about networks alone.
VISITOR = "visitor"
#: Networks that a rule may name, and whether 127.0.0.1 is in them.
NETWORKS = {
    "127.0.0.0/8": True,
    "127.0.0.9/28": True,
    "127.0.0.16/28": False,
    "127.0.0.1/32": True,
    "0.0.0.0/0": True,
    "10.0.0.0/8": False,
    "::/0": False,
}
NO_NETWORKS = (
    *("127.0.0.0/33", "127.0.0.0/-1", "127.0.0/8", "127.0.0.0/", "/8", "a.name/8", "*/8"),
    *("127.0.0.0/255.0.0.0", "127.0.0.0/8 ", "127.0.0.256/8", "::1/129", "::ffff:127.0.0.0/104"),
    "",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """magnetar and Kafka with the same users, ACLs, topic, group and transactional id."""
    users = " ".join(f'user_{user}="pw"' for user in (OWNER, VISITOR, *TOKEN_USERS))
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_MODULE} required {users};",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "delegation.token.secret.key": "a secret of the tests",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        # The member of the consumer group sends no second heartbeat.
        "group.consumer.max.session.timeout.ms": "3600000",
        "group.consumer.session.timeout.ms": "3600000",
    }
    brokers = []
    with ExitStack() as stack:
        for kind in ("magnetar", "kafka"):
            directory = tmp_path_factory.mktemp(kind)
            lives_long = settings | LONG_LIVED.get(kind, {})
            broker = make_broker(kind, directory, lives_long, ["SASL_PLAINTEXT"])
            stack.callback(broker.stop)
            broker.start()
            prepare(broker)
            brokers.append(broker)
        magnetar, kafka = brokers
        yield magnetar, kafka


def prepare(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_topic(broker.bootstrap, TOPIC)
    for made in admin.create_acls([each for rule in RULES for each in rule.bindings()]).values():
        made.result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    commit(consumer, TopicPartition(TOPIC, 0, 0))
    consumer.close()
    with Connection(broker.bootstrap) as connection:
        connection.producer(TRANSACTIONAL_ID)
    with ConsumerMember(broker.bootstrap, CONSUMER_GROUP) as member:
        member.enter_with(TOPIC)
        assert member.assigned
    # librdkafka knows neither kind of resource.
    for user, (option, operation) in TOKEN_RULES.items():
        name = f"User:{OWNER}" if option == "--user-principal" else "*"
        allowed = ("--allow-principal", f"User:{user}", "--operation", operation, option, name)
        command_line.run(broker, "acls", "add", *allowed)


def topic_id(broker: Broker) -> Any:
    with Connection(broker.bootstrap) as connection:
        request = MetadataRequest[12](topics=None)
        answer = connection.call(request, MetadataResponse)
        return next(topic.topic_id for topic in answer.topics if topic.name == TOPIC)


def served(broker: Broker) -> dict[int, tuple[int, int]]:
    with Connection(broker.bootstrap) as connection:
        answer = connection.call(ApiVersionsRequest[0](), ApiVersionsResponse)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


class Asked:
    """One broker, asked by one user."""

    def __init__(self, broker: Broker, user: str) -> None:
        self._id = topic_id(broker)
        self._connection = plain_connection(broker, user, "pw")
        self.served = served(broker)
        self.requests = access_frames.requests(self._id)

    def ask(self, access: Access, version: int) -> set[tuple[str, ...]]:
        """Return what the authorizer decided, once no coordinator is still loading."""
        answer = access_frames.ask(self._connection, access, version)
        return access_frames.seen(answer, {self._id: TOPIC})

    def ask_all(self, access: Access, version: int) -> Any:
        """Return the whole answer, without what differs between any two brokers."""
        return comparable(access_frames.ask(self._connection, access, version), {})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.user)
def test_an_acl_allows_what_it_allows_in_apache_kafka(
    pair: tuple[Broker, Broker], rule: Rule
) -> None:
    ours, theirs = (Asked(broker, rule.user) for broker in pair)
    differences = []
    for mine, their in zip(ours.requests, theirs.requests, strict=True):
        for version in common_versions(mine, ours, theirs):
            said, expected = ours.ask(mine, version), theirs.ask(their, version)
            if said != expected:
                differences.append(
                    f"{mine} v{version}: ours alone {sorted(said - expected)},"
                    f" Kafka's alone {sorted(expected - said)}"
                )
    assert not differences, "\n" + "\n".join(differences)


def test_a_client_without_rights_is_refused_as_by_apache_kafka_to_the_last_field(
    pair: tuple[Broker, Broker],
) -> None:
    ours, theirs = (Asked(broker, "none") for broker in pair)
    differences = []
    for mine, their in zip(ours.requests, theirs.requests, strict=True):
        for version in common_versions(mine, ours, theirs):
            said, expected = ours.ask_all(mine, version), theirs.ask_all(their, version)
            if said != expected and mine.api not in NAMING_USERS:
                differences.append(f"{mine} v{version}: ours {said}, Kafka's {expected}")
    assert not differences, "\n" + "\n".join(differences)


def common_versions(access: Access, ours: Asked, theirs: Asked) -> range:
    """Return the versions of a request that both brokers serve and kafka-python knows; there is
    one at least.
    """
    key = access_frames.key_of(access)
    first = max(access.first, ours.served[key][0], theirs.served[key][0])
    known = min(access.last, access_frames.last_known(access))
    last = min(known, ours.served[key][1], theirs.served[key][1])
    assert first <= last, access
    return range(first, last + 1)


def test_acls_are_not_removed_by_codes_that_do_not_exist(pair: tuple[Broker, Broker]) -> None:
    """Each code of a filter alone; with the last filter all are known, and nothing is found."""
    known = (TOPIC_RESOURCE, LITERAL, ANY, ANY)
    unknown = [(*known[:place], 99, *known[place + 1 :]) for place in range(len(known))]
    filters = [
        (resource, MISSING_TOPIC, pattern, None, None, operation, permission)
        for resource, pattern, operation, permission in (*unknown, known)
    ]
    for broker in pair:
        with Connection(broker.bootstrap) as connection:
            found = connection.call(DeleteAclsRequest[3](filters=filters), DeleteAclsResponse)
        codes = [each.error_code for each in found.filter_results]
        assert codes == [42, 42, 42, 42, 0], broker.kind


@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [
        (ResourceType.GROUP, "a-group", AclOperation.WRITE),
        (ResourceType.BROKER, "kafka-cluster", AclOperation.DELETE),
        (ResourceType.TRANSACTIONAL_ID, "an-id", AclOperation.READ),
    ],
    ids=["write on a group", "delete on the cluster", "read on a transactional id"],
)
def test_an_acl_may_have_an_operation_that_its_resource_does_not_have(
    pair: tuple[Broker, Broker], kind: ResourceType, name: str, operation: AclOperation
) -> None:
    rule = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:odd",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    asked = AclBindingFilter(
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:odd",
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for broker in pair:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_acls([rule])[rule].result(TIMEOUT_S)
        eventually(partial(_stores, admin, asked, rule))


def test_an_acl_may_be_about_a_network(pair: tuple[Broker, Broker]) -> None:
    describe, allow = 8, 3
    hosts = (*NETWORKS, *NO_NETWORKS)
    rules = [
        (TOPIC_RESOURCE, f"network-{number}", LITERAL, f"User:{VISITOR}", host, describe, allow)
        for number, host in enumerate(hosts)
    ]
    for broker in pair:
        with Connection(broker.bootstrap) as connection:
            made = connection.call(CreateAclsRequest[2](creations=rules), CreateAclsResponse)
        refused = [host for host, each in zip(hosts, made.results, strict=True) if each.error_code]
        assert refused == [*NO_NETWORKS], broker.kind
        with plain_connection(broker, VISITOR, "pw") as visitor:
            eventually(partial(_is_let_in_by_networks, visitor))


def _is_let_in_by_networks(visitor: Connection) -> bool:
    """Whether the visitor may ask for those topics, none of which exists, that it should."""
    names = [f"network-{number}" for number in range(len(NETWORKS))]
    found = visitor.call(MetadataRequest[4](topics=names), MetadataResponse)
    codes = {each.name: each.error_code for each in found.topics}
    assert {*codes.values()} <= {UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED}
    return [codes[name] == UNKNOWN_TOPIC_OR_PARTITION for name in names] == [*NETWORKS.values()]


def _stores(admin: AdminClient, asked: AclBindingFilter, rule: AclBinding) -> bool:
    return bool(admin.describe_acls(asked).result(TIMEOUT_S) == [rule])


@pytest.fixture(scope="module")
def tokens(pair: tuple[Broker, Broker]) -> list[bytes]:
    """The HMAC of a token of OWNER on each broker of the pair."""
    hmacs = []
    for broker in pair:
        with plain_connection(broker, OWNER, "pw") as connection:
            made = token_frames.create(connection)
            eventually(partial(_sees, connection, made.token_id))
        hmacs.append(made.hmac)
    return hmacs


def _sees(connection: Connection, token_id: str) -> bool:
    return token_id in token_frames.describe(connection)


def said_of_tokens(broker: Broker, user: str, hmac: bytes) -> dict[str, object]:
    """Return what a user is told in every version of each request about the tokens of OWNER."""
    said: dict[str, object] = {}

    def ask(what: str, version: int, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(connection, *arguments, version=version)
        except TokenRefused as refused:
            said[f"{what} v{version}"] = refused.code.name
        else:
            said[f"{what} v{version}"] = "none"

    with plain_connection(broker, user, "pw") as connection:
        for version in token_frames.versions(token_frames.DESCRIBE):
            for what, owners in (("describe", None), ("describe of the owner", [OWNER])):
                found = token_frames.described(connection, owners, version)
                # Kafka shows tokens that other users have just made a second later, or two.
                said[f"{what} v{version}"] = {each.principal_name for each in found} & {OWNER}
        for version in token_frames.versions(token_frames.RENEW):
            ask("renew", version, token_frames.renew, hmac)
            ask("renew none", version, token_frames.renew, b"x")
        for version in token_frames.versions(token_frames.EXPIRE):
            ask("expire", version, token_frames.expire, hmac, 9)
            ask("expire none", version, token_frames.expire, b"x", 9)
        for version in token_frames.versions(token_frames.CREATE):
            ask("create", version, token_frames.create)
        ask("create for the owner", 3, token_frames.create, OWNER)
    return said


@pytest.mark.parametrize("user", TOKEN_USERS)
def test_an_acl_allows_of_tokens_what_it_allows_in_apache_kafka(
    pair: tuple[Broker, Broker], tokens: list[bytes], user: str
) -> None:
    ours, theirs = (
        said_of_tokens(broker, user, hmac) for broker, hmac in zip(pair, tokens, strict=True)
    )
    assert ours == theirs
    option, operation = TOKEN_RULES.get(user, ("", ""))
    sees = operation in ("DESCRIBE", "DESCRIBE_TOKENS", "ALL")
    assert ours["describe v1"] == ({OWNER} if sees else set())
    makes = option == "--user-principal" and operation in ("CREATE_TOKENS", "ALL")
    code = "none" if makes else "delegation_token_authorization_failed"
    assert ours["create for the owner v3"] == code


@pytest.mark.magnetar_only("the pair is asked once")
def test_every_api_that_an_authorizer_knows_is_asked(broker: Broker) -> None:
    asked = {access_frames.key_of(each) for each in access_frames.requests(None)}
    of_tokens = {
        token_frames.CREATE,
        token_frames.RENEW,
        token_frames.EXPIRE,
        token_frames.DESCRIBE,
    }
    # ApiVersions, SASL; topics' replicas.
    unasked = {18, 17, 36, 34}
    assert asked | of_tokens | unasked >= served(broker).keys()
