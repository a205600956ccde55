"""`magnetar testing serve`: brokers for tests in other languages, as JSON over a unix socket."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer


class Peer:
    """A test in another language: it knows JSON and a socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw")
        self._last_id = 0

    def say(self, line: str) -> dict[str, Any]:
        self._lines.write(line + "\n")
        self._lines.flush()
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def call(self, call: str, broker: int | None = None, /, **args: Any) -> Any:
        self._last_id += 1
        said = {"id": self._last_id, "call": call, "broker": broker, "args": args}
        answer = self.say(json.dumps(said))
        assert answer["id"] == self._last_id
        return answer["result"] if "result" in answer else answer["error"]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def command(path: Path) -> list[str]:
    return [sys.executable, "-m", "magnetar", "testing", "serve", "--socket", str(path)]


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("s") / "s"
    served = subprocess.Popen(command(path), stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    with served, served.stdout as output:
        assert output.readline() == f"magnetar testing: ready on {path}\n"
        yield path
        served.send_signal(signal.SIGTERM)
    assert served.returncode == 0
    assert not path.exists()


@pytest.fixture
def peer(socket_path: Path) -> Iterator[Peer]:
    connected = Peer(socket_path)
    yield connected
    connected.close()


def test_a_test_in_another_language_has_brokers_faults_and_records(peer: Peer) -> None:
    started = peer.call("start", settings={"num.partitions": "1"})
    broker = started["broker"]
    assert started["client_settings"]["bootstrap.servers"] == started["bootstrap_servers"]
    topic = peer.call("topic", broker, name="orders")
    fault = peer.call("fail", broker, api="PRODUCE", error="NOT_ENOUGH_REPLICAS", topic=topic)
    peer.call("record_requests", broker, apis=["Produce"])
    producer = Producer({"bootstrap.servers": started["bootstrap_servers"], "log_level": 0})
    producer.produce(topic, b"\xff", key=b"k", headers=[("h", b"1")])
    assert producer.flush(30) == 0
    assert peer.call("hits", **fault) == 1
    (record,) = peer.call("records", broker, topic=topic)
    assert (record["key"], record["value"]) == ("k", {"base64": "/w=="})
    assert record["headers"] == [["h", "1"]]
    assert peer.call("assert_once", broker, topic=topic, expected=[{"base64": "/w=="}]) is None
    wrong = peer.call("assert_once", broker, topic=topic, expected=["x"])
    assert wrong["type"] == "AssertionError"
    assert "missing: b'x'" in wrong["message"]
    assert [each["error"] for each in peer.call("requests", broker)] == [
        "NOT_ENOUGH_REPLICAS",
        None,
    ]

    unfired = peer.call("lose_answer", broker, api="EndTxn")
    assert peer.call("stop", broker)["type"] == "FaultNeverFired"
    assert peer.call("hits", **unfired) == 0
    assert "no broker" in peer.call("kill", broker)["message"]


def test_mistakes_are_answered_and_the_connection_goes_on(peer: Peer) -> None:
    for line, told in [
        ("nonsense", "Expecting value"),
        ("[]", "a call is an object"),
        ('{"call": "start", "args": {"setings": {}}}', "unexpected keyword argument 'setings'"),
        ('{"call": "start", "args": {"snapshot": "/nowhere"}}', "is no snapshot"),
        ('{"call": "kill", "broker": 99}', "there is no broker 99"),
        ('{"call": "hits", "args": {"fault": 99}}', "there is no fault 99"),
        ('{"call": "hits", "args": {"fault": [1]}}', "there is no fault [1]"),
        ('{"call": "hits", "broker": {}}', "hits: missing a required argument"),
        ('{"call": "kill", "broker": {}}', "there is no broker {}"),
        ('{"call": "start", "args": [1]}', "args is an object"),
        ('{"call": "start", "args": {"settings": 5}}', "cannot take such arguments"),
        ('{"call": "start", "args": {"users": {"a": 5}}}', "cannot take such arguments"),
        ('{"id": NaN, "call": "start"}', "NaN is no JSON"),
        ("[" * 100_000, "nested too deep"),
    ]:
        assert told in peer.say(line)["error"]["message"]


def test_arguments_that_do_not_fit_are_answered_and_the_broker_goes_on(peer: Peer) -> None:
    broker = peer.call("start")["broker"]
    misfits: list[tuple[str, dict[str, Any]]]
    misfits = [
        ("advance", {"seconds": 1e308}),
        ("assert_once", {"topic": "t", "expected": [{"x": 1}]}),
        ("topic", {"configs": [1]}),
    ]
    for call, args in misfits:
        answer = peer.call(call, broker, **args)
        assert "cannot take such arguments" in answer["message"], answer
    misfits = [
        ("expire", {"group": True}),
        ("fence", {"transactional_id": {}}),
        ("wait_for_group", {"group": [1]}),
        ("wait_for_group", {"group": None}),
    ]
    for call, args in misfits:
        assert "is no name: give text" in peer.call(call, broker, **args)["message"]
    assert peer.call("topic", broker, name="t") == "t"
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("topic", {"name": "t"}, "TOPIC_ALREADY_EXISTS"),
        ("topic", {"name": ""}, "INVALID_TOPIC_EXCEPTION"),
        ("topic", {"name": 5}, "not a string"),
        ("records", {"topic": "none"}, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    for call, args, told in refused:
        assert told in peer.call(call, broker, **args)["message"]


def test_a_path_that_is_taken_stays_with_its_owner(socket_path: Path, peer: Peer) -> None:
    again = subprocess.run(command(socket_path), capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert (
        again.stderr
        == f"magnetar: error: cannot listen on {socket_path}: Address already in use.\n"
    )
    assert "there is no broker 99" in peer.call("kill", 99)["message"]


def test_the_brokers_of_a_connection_end_with_it(socket_path: Path) -> None:
    peer = Peer(socket_path)
    address = peer.call("start")["bootstrap_servers"]
    assert peer.call("fial", 1)["message"] == "there is no call 'fial'. Did you mean fail?"
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 30) as client:
        peer.close()
        # The end of the broker, not of this connection.
        assert client.recv(1) == b""
