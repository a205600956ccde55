"""Answers of two brokers made comparable, and scripts of requests to be answered alike by both.

Left out is what differs between any two brokers by nature: addresses, ids of clusters and topics,
sizes of disks, the words of texts that explain. Ids that a broker makes up for members, producers
and fetch sessions are compared by the order in which they first appear.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from compat_tests.client import TIMEOUT_S
from compat_tests.raw import Closed, Connection, batch
from compat_tests.waiting import eventually

#: The fields that differ between brokers. Of the texts among them clients read none.
_DIFFERING = {
    *("throttle_time_ms", "error_message", "documentation"),
    *("topic_id", "cluster_id", "host", "port", "log_dir", "total_bytes", "usable_bytes"),
}
#: Kafka's cluster sets `min.insync.replicas` for itself, and for each broker.
_NOT_COMPARED = "min.insync.replicas"
_MADE_UP = {"member_id", "leader", "producer_id", "session_id"}
#: Fields that say when something happened, by the broker's clock. If nothing has, they are -1.
_MOMENTS = {"log_append_time_ms", "transaction_start_time_ms", "last_timestamp"}
_NOBODY = ("", None, -1, 0)
#: Retriable while a coordinator loads or its topic is created.
_NOT_YET = {14, 15, 16}
CLOSED = "the connection was closed"
_TRIES_MAX = 5
Fields = dict[str, Any]
#: Two records of five milliseconds after 1970 began.
TWO = batch([b"a", b"b"], timestamp_ms=5)


def comparable(answer: Any, names: dict[Any, str] | None = None) -> Any:
    """Return an answer without what differs between any two brokers, lists in one order.

    `names` maps ids that the broker made up to names that both brokers share. New ids are added.
    """
    if isinstance(answer, dict):
        return {
            key: _named(key, each, names) if names is not None else comparable(each)
            for key, each in answer.items()
            if key not in _DIFFERING
        }
    if isinstance(answer, list | tuple):
        kept = [
            comparable(each, names)
            for each in answer
            if not (isinstance(each, dict) and each.get("name") == _NOT_COMPARED)
        ]
        return sorted(kept, key=repr)
    return answer


def _named(key: str, value: Any, names: dict[Any, str]) -> Any:
    if key in _MADE_UP and not isinstance(value, dict | list) and value not in _NOBODY:
        return names.setdefault(value, f"{key} {len(names)}")
    if key in _MOMENTS and value > 0:
        return "a moment"
    return comparable(value, names)


class Answer(NamedTuple):
    """One answer: `asked` is for the report of a difference, `heard` is comparable, or CLOSED."""

    request: str
    version: int
    asked: str
    heard: Any


_NONE = Answer("nothing", 0, "", None)


class Script:
    """One broker's part of a script: `answers` in the order of the requests."""

    def __init__(self, bootstrap: str) -> None:
        self.answers: list[Answer] = []
        self._bootstrap = bootstrap
        self._connection = Connection(bootstrap)
        self._names: dict[Any, str] = {}

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, request: Any, version: int, **fields: Any) -> Any:
        """Send a request, nested parts as dicts; return the answer, None if there was none.

        Fields that the version does not have are left out. Waits for a coordinator.
        """
        response = getattr(
            sys.modules[request.__module__], request.__name__.replace("Request", "Response")
        )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                answer = self._connection.call(built(request[version], fields), response)
            except Closed:
                self._connection.close()
                self._connection = Connection(self._bootstrap)
                answer, heard = None, CLOSED
                break
            heard = answer.to_dict(json=False)
            if _NOT_YET.isdisjoint(_codes(heard)) or time.monotonic() > deadline:
                break
            time.sleep(0.02)  # Nothing tells when the coordinator is there.
        shown = repr(fields)[:300]
        self.answers.append(
            Answer(request.__name__, version, shown, comparable(heard, self._names))
        )
        return answer


def built(container: Any, fields: Mapping[str, Any]) -> Any:
    """Return a message, or a part of one, with these fields."""
    known = container.fields
    return container(**{name: _value(known[name], value) for name, value in fields.items()})


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return built(field.data_class, value)
    if isinstance(value, list) and field.is_struct_array():
        return [built(field.data_class, each) for each in value]
    return value


def _codes(answer: Any) -> Iterator[int]:
    """Yield the error codes in an answer."""
    parts = answer.items() if isinstance(answer, dict) else enumerate(answer)
    for key, value in parts:
        if key == "error_code":
            yield value
        elif isinstance(value, dict | list):
            yield from _codes(value)


class Topic(NamedTuple):
    """A topic by its name and the id that one of the brokers has given it."""

    name: str
    topic_id: UUID

    def part(self, **fields: Any) -> Fields:
        """Return it as a part of a request, which takes the name or the id by its version."""
        return {"name": self.name, "topic_id": self.topic_id, **fields}


NO_ID, NOWHERE = UUID(int=0), UUID(int=7)
ABSENT, MISNAMED = Topic("there-is-none", NOWHERE), Topic("a b", NO_ID)


def differences(
    brokers: tuple[Broker, Broker], orders: str, script: Callable[[Script, Topic], None]
) -> list[tuple[Answer, Answer]]:
    """Return what the brokers answer differently to `script`, which asks of a new topic.

    The topic's name begins with `orders`. It has six records in the first of two partitions. On a
    busy machine Kafka's controller may give up its own broker for a moment, and then all leader
    epochs go up. If so, differences do not count: the script is played again with another topic.
    """
    for number in range(_TRIES_MAX):
        topic = f"{orders}-{number}"
        found = _differences(brokers, topic, script)
        if not found or _leaders_stayed(brokers[1], topic):
            return found
    raise AssertionError(f"the leaders of {orders} change all the time: {found}")


def _leaders_stayed(broker: Broker, topic: str) -> bool:
    with Script(broker.bootstrap) as asking:
        (found,) = asking.ask(MetadataRequest, 10, topics=[{"name": topic}]).topics
        return all(each.leader_epoch == 0 for each in found.partitions)


def _differences(
    brokers: tuple[Broker, Broker], orders: str, script: Callable[[Script, Topic], None]
) -> list[tuple[Answer, Answer]]:
    ours, kafkas = (_play(broker, orders, script) for broker in brokers)
    return [
        (ours_said, kafka_said)
        for ours_said, kafka_said in zip_longest(ours, kafkas, fillvalue=_NONE)
        if ours_said.heard != kafka_said.heard
    ]


def _play(broker: Broker, orders: str, script: Callable[[Script, Topic], None]) -> list[Answer]:
    # The records are old: retention, which looks every five minutes, would delete them in between.
    create_topic(broker.bootstrap, orders, 2, {"retention_ms": "-1"})
    with Connection(broker.bootstrap) as connection:
        # The first producer id is 0, which also stands where there is none: no script gets it.
        connection.producer(None)
        for _ in range(3):
            eventually(lambda: connection.produce(orders, TWO).error_code == 0)
    with Script(broker.bootstrap) as playing:
        asked = [{"name": orders}]
        (found,) = playing.ask(MetadataRequest, 10, topics=asked).topics
        for kind in (0, 1):  # of groups, of transactions
            playing.ask(FindCoordinatorRequest, 1, key=orders, key_type=kind)
        script(playing, Topic(orders, found.topic_id))
    return playing.answers
