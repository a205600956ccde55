"""Security: what TLS, logins and access control cost, beside Apache Kafka with the same settings.

One broker listens for every protocol and decides by 10 000 ACLs; another, without an authorizer,
answers the same requests, so that the difference is what deciding costs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks import librdkafka
from benchmarks.frames import Frames, framed
from benchmarks.subjects import cpu_seconds, running
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.confluent_client import producer
from magnetar.testing.certificates import COMMON_NAME, make, named
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
PARTITIONS = 4
ACLS = 10_000
_TOPIC, _USER, _PASSWORD = "secured", "bench", "pw of bench"
_MECHANISM, _SALT, _ITERATIONS = "SCRAM-SHA-256", b"salt of the bench user", 4096
_SALTED = hashlib.pbkdf2_hmac("sha256", _PASSWORD.encode(), _SALT, _ITERATIONS)
_CLIENT_KEY = hmac.digest(_SALTED, b"Client Key", "sha256")
_STORED_KEY = hashlib.sha256(_CLIENT_KEY).digest()
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGINS_AT_ONCE = 8
_ACLS_EACH = 500
_PIPELINED = 500


def settings(directory: Path) -> dict[str, str]:
    """Return the settings of a broker with a certificate of its own; its authority is itself."""
    path = make(named((COMMON_NAME, "server"))).write_pem(directory / "server.pem")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path),
        "sasl.enabled.mechanisms": _MECHANISM,
        **{
            f"listener.name.{listener}.scram-sha-256.sasl.jaas.config": f"{_MODULE} required;"
            for listener in ("sasl_plaintext", "sasl_ssl")
        },
    }


def with_acls(directory: Path) -> dict[str, str]:
    """Return those settings, and an authorizer; plain text is for the administrator."""
    return {
        **settings(directory),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def measure(broker: Broker, *, megabytes: int, logins: int, rounds: int) -> dict[Row, float]:
    """Measure `broker`, which has the settings `with_acls`, and one without an authorizer."""
    _prepare(broker)
    _create_acls(broker)
    found = {
        **_throughput(broker, megabytes),
        **_latency(broker, rounds),
        **_logins(broker, logins),
    }
    with_us = _request_us(broker, 100 * rounds)
    with running(broker.kind, settings, PROTOCOLS) as other:
        _prepare(other)
        without_us = _request_us(other, 100 * rounds)
    row = Row(f"broker CPU that {ACLS:,} ACLs add to a request", "us", False)
    return {**found, row: max(with_us - without_us, 0.0)}


def _prepare(broker: Broker) -> None:
    create_topic(broker.bootstrap, _TOPIC, PARTITIONS)
    change = ScramCredentialUpsertion(
        name=_USER, mechanism=1, iterations=_ITERATIONS, salt=_SALT, salted_password=_SALTED
    )
    request = AlterUserScramCredentialsRequest(upsertions=[change])
    with Frames(broker.bootstrap) as connection:
        answer = connection.call(request, AlterUserScramCredentialsResponse, 0)
    assert answer.results[0].error_code == 0, answer
    while True:
        # Kafka's nodes learn of new users a moment after the answer.
        try:
            _log_in(broker).close()
            return
        except ConnectionError:
            time.sleep(0.05)  # Kafka knows the new user a moment after its answer.


def _create_acls(broker: Broker) -> None:
    """Rules for other users and other topics, and the one that lets the user in."""
    own = AclCreation(
        resource_type=2,
        resource_name=_TOPIC,
        resource_pattern_type=3,
        principal=f"User:{_USER}",
        host="*",
        operation=2,
        permission_type=3,
    )
    others = [
        AclCreation(
            resource_type=2,
            resource_name=("secured-" if number % 2 else "s") + f"{number}",
            resource_pattern_type=3 + number % 2,
            principal=f"User:user-{number % 1000}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(ACLS - 1)
    ]
    every = [own, *others]
    with Frames(broker.bootstrap) as connection:
        for first in range(0, ACLS, _ACLS_EACH):
            request = CreateAclsRequest(creations=every[first : first + _ACLS_EACH])
            answer = connection.call(request, CreateAclsResponse, 2)
            assert not any(each.error_code for each in answer.results)


def _throughput(broker: Broker, megabytes: int) -> dict[Row, float]:
    count, size_bytes = megabytes * 1000, 1024
    address = broker.address("SSL")
    rate = 0.0
    # Twice, so that a JVM compiles what it runs often.
    for each in (count // 2, count):
        took_s = librdkafka.produce(
            address,
            _TOPIC,
            each,
            size_bytes,
            PARTITIONS,
            security_protocol="SSL",
            enable_ssl_certificate_verification="false",
        )
        rate = each * size_bytes / 1e6 / took_s
    took_s = librdkafka.consume(
        address,
        _TOPIC,
        count,
        PARTITIONS,
        security_protocol="SSL",
        enable_ssl_certificate_verification="false",
    )
    return {
        Row("TLS: produce 1 KB, acks=all, librdkafka", "MB/s", True): rate,
        Row("TLS: consume 1 KB, librdkafka", "MB/s", True): count * size_bytes / 1e6 / took_s,
    }


def _latency(broker: Broker, rounds: int) -> dict[Row, float]:
    """One record at a time over SASL_SSL: from produce to its acknowledgement, no linger."""
    client = producer(
        broker.address("SASL_SSL"),
        linger_ms=0,
        acks="all",
        security_protocol="SASL_SSL",
        enable_ssl_certificate_verification=False,
        sasl_mechanism=_MECHANISM,
        sasl_username=_USER,
        sasl_password=_PASSWORD,
    )
    took_ms: list[float] = []
    for _ in range(2 * rounds):
        began_at = time.perf_counter()
        client.produce(_TOPIC, b"x" * 100, partition=0)
        client.flush()
        took_ms.append((time.perf_counter() - began_at) * 1000)
    row = Row("SASL_SSL: one record acknowledged, p50", "ms", False)
    return {row: median(took_ms[rounds:])}


def _logins(broker: Broker, logins: int) -> dict[Row, float]:
    """New connections that log in by SCRAM, from some threads at once."""
    each = logins // _LOGINS_AT_ONCE

    def log_in() -> None:
        for _ in range(each):
            _log_in(broker).close()

    for is_warm in (False, True):
        cpu_before_s = cpu_seconds(broker.pid)
        threads = [threading.Thread(target=log_in) for _ in range(_LOGINS_AT_ONCE)]
        began_at = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - began_at
        if is_warm:
            break
    cpu_us = (cpu_seconds(broker.pid) - cpu_before_s) * 1e6
    count = each * _LOGINS_AT_ONCE
    return {
        Row(f"logins by {_MECHANISM}, {_LOGINS_AT_ONCE} clients", "per s", True): count / took_s,
        Row("broker CPU for one of them", "us", False): cpu_us / count,
    }


def _request_us(broker: Broker, count: int) -> float:
    """Return the broker's CPU for one small request of a user that one ACL allows, in us."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name=_TOPIC, partitions=[partition])]
    data = framed(ListOffsetsRequest(replica_id=-1, topics=topics), 5) * _PIPELINED
    connection = _log_in(broker)
    try:
        for _ in range(2):
            cpu_before_s = cpu_seconds(broker.pid)
            for _ in range(count // _PIPELINED):
                connection.send_bytes(data)
                for _ in range(_PIPELINED):
                    connection.receive_frame()
        return (cpu_seconds(broker.pid) - cpu_before_s) * 1e6 / (count // _PIPELINED * _PIPELINED)
    finally:
        connection.close()


def _log_in(broker: Broker) -> Frames:
    """Return a connection that has logged in. Raises ConnectionError."""
    connection = Frames(broker.address("SASL_PLAINTEXT"))
    begun = connection.call(SaslHandshakeRequest(mechanism=_MECHANISM), SaslHandshakeResponse, 1)
    assert begun.error_code == 0, begun
    bare = f"n={_USER},r=nonce"
    server_first = _step(connection, f"n,,{bare}")
    nonce = server_first.split(",")[0]
    without_proof = f"c=biws,{nonce}"
    message = f"{bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(_STORED_KEY, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(_CLIENT_KEY, signature, strict=True))
    _step(connection, f"{without_proof},p={base64.b64encode(proof).decode()}")
    return connection


def _step(connection: Frames, token: str) -> str:
    request = SaslAuthenticateRequest(auth_bytes=token.encode())
    answer = connection.call(request, SaslAuthenticateResponse, 1)
    if answer.error_code:
        connection.close()
        raise ConnectionError(answer.error_message)
    return bytes(answer.auth_bytes).decode()
