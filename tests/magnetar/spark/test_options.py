"""The sink's options: what is understood, and what is refused in words that name it."""

from __future__ import annotations

import pickle

import pytest

from coordinator.transactions.joint import parent_of
from magnetar.spark.errors import BadOptions
from magnetar.spark.options import (
    QUERY_ID_BYTES_MAX,
    Guarantee,
    SinkOptions,
    check_separated,
    parse_options,
)
from magnetar.spark.task import Family

SERVERS = {"kafka.bootstrap.servers": "host:9092"}


def test_options_come_in_any_case_and_have_defaults() -> None:
    assert parse_options(SERVERS) == SinkOptions("host:9092")
    given = {
        "KAFKA.bootstrap.servers": " host:9092 ",
        "Topic": "orders",
        "queryid": "q",
        "batchId": "0",
        "deliveryguarantee": "At-Least-Once",
        "brokerTimeoutMs": "5",
        "checkpointLocation": "anywhere",
        "kafka.linger.ms": "1",
    }
    assert parse_options(given) == SinkOptions(
        "host:9092", "orders", "q", 0, Guarantee.AT_LEAST_ONCE, 5, {"linger.ms": "1"}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"queryid ": "q"}, "unknown option 'queryid '"),
        ({"includeHeaders": "true"}, "unknown option 'includeheaders'"),
        ({"topic": ""}, "the option topic is empty"),
        ({"batchId": "one"}, "batchId is 'one'"),
        ({"batchId": "-1"}, "batchId is '-1'"),
        ({"batchId": str(2**63)}, "it takes a number from 0 to 9223372036854775807"),
        ({"batchId": "\N{ARABIC-INDIC DIGIT ONE}"}, "it takes a number"),
        ({"brokerTimeoutMs": "3600001"}, "brokerTimeoutMs"),
        ({"queryId": "a\nb"}, "outer spaces, or what cannot be printed"),
        ({"queryId": " a"}, "outer spaces"),
        ({"queryId": "ü" * (QUERY_ID_BYTES_MAX // 2 + 1)}, "more than 512 bytes"),
        ({"deliveryGuarantee": "twice"}, "it takes exactly-once or at-least-once"),
        ({"kafka.transactional.id": "mine"}, "kafka.transactional.id is the sink's own"),
        ({"kafka.security.protocol": "TLS"}, "security.protocol is TLS: there are PLAINTEXT"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"kafka.ssl.truststore.location": "a.jks"}, "reads PEM alone"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOptions) as refused:
        parse_options({**SERVERS, **options})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("query_id", "separator", "said"),
    [
        ("a~>b", "~>", "'a~>b' contains '~>'"),
        ("a-", "--", "'a-' contains '--', or ends with a part of it"),
        ("orders", ".", "joint.transactions.separator is '.', which names of tasks contain"),
    ],
)
def test_a_query_whose_tasks_would_not_be_its_own_is_refused(
    query_id: str, separator: str, said: str
) -> None:
    with pytest.raises(BadOptions) as refused:
        check_separated(query_id, separator)
    assert said in str(refused.value)


@pytest.mark.parametrize(("query_id", "separator"), [("a~", "~>"), ("-a", "--"), (">", "~>")])
def test_a_task_belongs_to_its_query(query_id: str, separator: str) -> None:
    check_separated(query_id, separator)
    child = Family(query_id, separator, 1).child(7, 0)
    assert parent_of(child, separator) == query_id


def test_a_secured_broker_is_named_as_for_sparks_own_connector() -> None:
    options = parse_options(
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": 'org.X required username="ada" password="pw";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "authority.pem",
            "kafka.linger.ms": "5",
        }
    )
    assert options.client == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "pw",
        "ssl.ca.location": "authority.pem",
        "linger.ms": "5",
    }
    assert (options.security.username, options.security.truststore) == ("ada", "authority.pem")
    # Tasks get the options pickled.
    assert pickle.loads(pickle.dumps(options)) == options
