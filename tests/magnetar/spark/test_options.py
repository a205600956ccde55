"""The sink's options: what is understood, and what is refused in words that name it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle

from coordinator.transactions import joint
from coordinator.transactions.joint import parent_of
from magnetar.spark.data_source import MagnetarDataSource, of_session
from magnetar.spark.errors import BadOptions
from magnetar.spark.options import (
    QUERY_ID_BYTES_MAX,
    Guarantee,
    SinkOptions,
    check_separated,
    parse_options,
)
from magnetar.spark.task import CHILDREN_MAX, Family

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
        "includeHeaders": "true",
    }
    assert parse_options(given) == SinkOptions(
        "host:9092", "orders", "q", 0, Guarantee.AT_LEAST_ONCE, 5, {"linger.ms": "1"}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"queryid ": "q"}, "unknown option 'queryid '"),
        ({"topic": ""}, "the option topic is empty"),
        ({"batchId": "one"}, "batchId is 'one'"),
        ({"batchId": "-1"}, "batchId is '-1'"),
        ({"batchId": str(2**63)}, "it takes a number from 0 to 9223372036854775807"),
        ({"batchId": "\N{ARABIC-INDIC DIGIT ONE}"}, "it takes a number"),
        ({"brokerTimeoutMs": "3600001"}, "brokerTimeoutMs"),
        ({"brokerTimeoutMs": "0"}, "brokerTimeoutMs is '0'; it takes a number from 1 to 3600000"),
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
    child = Family(query_id, separator, 1, "0a1b").child(7, 0)
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


def test_a_driver_knows_its_tasks_of_a_batch_from_those_of_others() -> None:
    mine, other = (Family("q", "~>", 1, session) for session in ("0a1b", "0a1c"))
    for batch_id in (None, 1, 12):
        child = mine.child(batch_id, 3)
        assert child.startswith(mine.prefix(batch_id))
        assert not child.startswith((other.prefix(batch_id), mine.prefix(2)))


def test_the_class_that_spark_sends_about_is_that_of_one_session() -> None:
    first, second = of_session(), of_session()
    dumps: Any = cloudpickle.dumps
    sent = pickle.loads(dumps(first))
    assert issubclass(sent, MagnetarDataSource)
    assert sent.session == first.session != second.session


def test_as_many_tasks_may_write_at_once_as_a_broker_takes() -> None:
    assert CHILDREN_MAX == joint.CHILDREN_MAX
