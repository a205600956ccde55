"""What has to exist before a request makes sense: a topic, a group, a producer, their past.

A request is named as on the command line: "Fetch", "EndTxn v4", "Produce v11 transactional".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

from benchmarks.frames import NOT_YET, Frames
from tools.trace.samples import errors, message_classes, sample
from wire.message import ZERO_UUID, Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.records import SimpleRecord, build_batch

#: Transactions of version 2 begin without AddPartitionsToTxn: Produce v12+, TxnOffsetCommit v5+.
_IMPLICIT_SINCE = {"Produce": 12, "TxnOffsetCommit": 5, "EndTxn": 5}
_BEFORE_IMPLICIT = {"Produce": 11, "TxnOffsetCommit": 4, "EndTxn": 4}
_API_VERSIONS_VERSION = 3
_RETRY_S = 30.0
_RETRY_EVERY_S = 0.005
_MEMBER_ID_REQUIRED = 79


class Request(NamedTuple):
    """A named request; without a version, the latest that is served."""

    api: str
    version: int | None = None
    is_transactional: bool = False

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read a name such as "Produce v11 transactional". Raises ValueError."""
        api, *words = text.split() or [""]
        request = cls(api)
        for word in words:
            if word == "transactional":
                request = request._replace(is_transactional=True)
            elif word.startswith("v") and word[1:].isdigit():
                request = request._replace(version=int(word[1:]))
            else:
                raise ValueError(f"{word!r} in {text!r}: neither a version nor 'transactional'")
        return request

    def __str__(self) -> str:
        version = "" if self.version is None else f" v{self.version}"
        return f"{self.api}{version}{' transactional' if self.is_transactional else ''}"


Fields = dict[str, Any]


class World:
    """A connection, and a topic, a group and a producer for one request alone."""

    def __init__(self, bootstrap: str, request: Request, number: int) -> None:
        """Raises ValueError for a request that the broker does not serve."""
        self.connection = Frames(bootstrap)
        self.topic = f"trace-{number}"
        self.group = f"trace-group-{number}"
        self.member_id = ""
        self.generation = -1
        self.member_epoch = -1
        self.made = 0
        self.producer = Producer(self, f"trace-producer-{number}")
        self._requests, self._responses = message_classes("Request"), message_classes("Response")
        self._versions = self._served_versions()
        if request.version is None and request.api in self._versions:
            request = request._replace(version=self._versions[request.api][-1])
        if request.version is None or request.version not in self._versions.get(request.api, ()):
            raise ValueError(f"{request} is not served; the APIs are {', '.join(self.apis)}")
        self.request = request
        self.version = request.version
        self.topic_id = ZERO_UUID
        self.topic_id = self.call("CreateTopics").topics[0].topic_id
        self.call("Produce")

    @property
    def apis(self) -> list[str]:
        """The names of all APIs that the broker serves."""
        return sorted(self._versions)

    def call(self, api: str, version: int | None = None, **values: Any) -> Any:
        """Return the answer to a request, sent again for as long as its coordinator is not ready.

        `values` are fields by name, at any depth; without a version, the latest is sent.
        """
        version = self._versions[api][-1] if version is None else version
        request = self._sample(api, version, values)
        deadline = time.monotonic() + _RETRY_S
        while True:
            answer = self._send(api, version, request)
            if NOT_YET.isdisjoint(errors(answer)):
                return answer
            assert time.monotonic() < deadline, f"{api}: {answer}"
            time.sleep(_RETRY_EVERY_S)

    def prepared(self) -> Message:
        """Return the request that is to be measured, once everything it needs has happened."""
        prepare = _PREPARED.get(self.request.api)
        return self._sample(
            self.request.api, self.version, {} if prepare is None else prepare(self)
        )

    def send(self, request: Message) -> Any:
        """Return the answer to what `prepared` has returned."""
        answer = self._send(self.request.api, self.version, request)
        if self.request.api == "EndTxn":
            self.producer.on_ended(self.version, answer)
        return answer

    def _send(self, api: str, version: int, request: Message) -> Any:
        return self.connection.call(request, self._responses[api], version)

    def _sample(self, api: str, version: int, values: Fields) -> Message:
        of_this_world = {
            "coordinator_keys": [self.group],
            "group_id": self.group,
            "group_ids": [self.group],
            "groups": [self.group],
            "groups_names": [self.group],
            "key": self.group,
            "name": self.topic,
            "records": self.batch(),
            "resource_name": self.topic,
            "subscribed_topic_names": [self.topic],
            "topic": self.topic,
            "topic_id": self.topic_id,
            "topic_name": self.topic,
            "topic_names": [self.topic],
            "transactional_ids": [self.producer.transactional_id],
        }
        return sample(api, self._requests[api], version, of_this_world, values)

    def _served_versions(self) -> dict[str, range]:
        answer = self.connection.call(
            ApiVersionsRequest(client_software_name="trace", client_software_version="1"),
            ApiVersionsResponse,
            _API_VERSIONS_VERSION,
        )
        names = {request.api_key: name for name, request in self._requests.items()}
        return {
            names[each.api_key]: range(each.min_version, each.max_version + 1)
            for each in answer.api_keys
        }

    def next_name(self) -> str:
        """Return a name that was not used before."""
        self.made += 1
        return f"{self.topic}-{self.made}"

    def batch(self, **producer: Any) -> bytes:
        """Return a batch of one record of 100 bytes."""
        record = SimpleRecord(None, b"x" * 100, time.time_ns() // 1_000_000)
        return bytes(build_batch([record], **producer))


class Producer:
    """A transactional producer: its identity, its sequence, whether it has begun something."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._world = world
        self._id = self._epoch = -1
        self._sequence = 0
        self._is_open = False

    def fields(self) -> Fields:
        """Return what a request of this producer says of it, under all names of these fields."""
        if self._id < 0:
            made = self._world.call("InitProducerId", 4, transactional_id=self.transactional_id)
            self._id, self._epoch = made.producer_id, made.producer_epoch
        identity = {
            "transactional_id": self.transactional_id,
            "producer_id": self._id,
            "producer_epoch": self._epoch,
        }
        return identity | {f"v3_and_below_{name}": value for name, value in identity.items()}

    def end(self, version: int) -> None:
        """End what is open, if anything is."""
        if self._is_open:
            self.on_ended(version, self._world.call("EndTxn", version, **self.fields()))

    def on_ended(self, version: int, answer: Any) -> None:
        """Take note of the answer to an EndTxn, which from version 5 on brings the next epoch."""
        self._is_open = False
        if version >= _IMPLICIT_SINCE["EndTxn"] and answer.producer_id >= 0:
            self._id, self._epoch = answer.producer_id, answer.producer_epoch
            self._sequence = 0

    def add(self, api: str) -> Fields:
        """Begin a transaction of version 1 with the request `api`; return the producer's fields."""
        fields = self.fields()
        self._world.call(api, 3, **fields)
        self._is_open = True
        return fields

    def data(self) -> Fields:
        """Return the fields of a Produce, whose batch takes the next sequence."""
        self.fields()
        batch = self._world.batch(
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        self._sequence += 1
        self._is_open = True
        return {"transactional_id": self.transactional_id, "records": batch}

    def opened(self) -> Fields:
        """Say that the request that follows opens a transaction; return its fields."""
        fields = self.fields()
        self._is_open = True
        return fields


def _produce(world: World) -> Fields:
    if not world.request.is_transactional:
        return {}
    producer = world.producer
    if world.version >= _IMPLICIT_SINCE["Produce"]:
        producer.end(_IMPLICIT_SINCE["EndTxn"])
    else:
        producer.end(_BEFORE_IMPLICIT["EndTxn"])
        producer.add("AddPartitionsToTxn")
    return producer.data()


def _end_txn(world: World) -> Fields:
    producer = world.producer
    if world.version >= _IMPLICIT_SINCE["EndTxn"]:
        world.call("Produce", **producer.data())
    else:
        producer.add("AddPartitionsToTxn")
        world.call("Produce", _BEFORE_IMPLICIT["Produce"], **producer.data())
    return producer.fields()


def _none_open(world: World) -> Fields:
    world.producer.end(_BEFORE_IMPLICIT["EndTxn"])
    return world.producer.opened()


def _txn_offset_commit(world: World) -> Fields:
    producer = world.producer
    if world.version >= _IMPLICIT_SINCE["TxnOffsetCommit"]:
        producer.end(_IMPLICIT_SINCE["EndTxn"])
        return producer.opened()
    producer.end(_BEFORE_IMPLICIT["EndTxn"])
    return producer.add("AddOffsetsToTxn")


def _member(world: World) -> Fields:
    """Return the fields of the group's only member, which has joined."""
    if not world.member_id:
        answer = world.call("JoinGroup", member_id="")
        world.member_id = answer.member_id
        if answer.error_code == _MEMBER_ID_REQUIRED:
            answer = world.call("JoinGroup", member_id=world.member_id)
        world.generation = answer.generation_id
    return {"member_id": world.member_id}


def _joined(world: World) -> Fields:
    """Return the fields of a group's leader that has joined again, and has yet to assign."""
    _member(world)
    answer = world.call("JoinGroup", member_id=world.member_id)
    world.generation = answer.generation_id
    return _of_member(world)


def _of_member(world: World) -> Fields:
    return {
        "member_id": world.member_id,
        "generation_id": world.generation,
        "generation_id_or_member_epoch": world.generation,
    }


def _stable_member(world: World) -> Fields:
    """Return the fields of a member of a group that is stable."""
    if not world.member_id:
        world.call("SyncGroup", **_joined(world))
    return _of_member(world)


def _leave(world: World) -> Fields:
    world.member_id = ""
    fields = _stable_member(world)
    return {"member_id": fields["member_id"]}


def _offsets_without_members(world: World) -> Fields:
    world.group = world.next_name()
    world.call("OffsetCommit", generation_id_or_member_epoch=-1, member_id="")
    return {}


def _committed(world: World) -> Fields:
    fields = _stable_member(world)
    world.call("OffsetCommit", **fields)
    return {"member_id": None, "member_epoch": -1}


def _consumer(world: World) -> Fields:
    """Return the fields of a member of a KIP-848 group, which has what it is assigned."""
    if not world.member_id:
        world.member_id = str(uuid4())
        answer = world.call(
            "ConsumerGroupHeartbeat",
            member_id=world.member_id,
            member_epoch=0,
            topic_partitions=[],
        )
        world.member_epoch = answer.member_epoch
    return {
        "member_id": world.member_id,
        "member_epoch": world.member_epoch,
        "subscribed_topic_names": None,
        "topic_partitions": None,
        "rebalance_timeout_ms": -1,
    }


def _consumer_group(world: World) -> Fields:
    _consumer(world)
    return {}


def _new_topic(world: World) -> Fields:
    return {"CreatableTopic.name": world.next_name()}


def _topic_to_delete(world: World) -> Fields:
    name = world.next_name()
    fields: Fields = {"CreatableTopic.name": name}
    created = world.call("CreateTopics", **fields)
    return {
        "DeleteTopicState.name": None,
        "topic_id": created.topics[0].topic_id,
        "topic_names": [name],
    }


def _partition_to_create(world: World) -> Fields:
    world.made += 1
    return {"count": 1 + world.made}


def _records_to_delete(world: World) -> Fields:
    world.call("Produce")
    return {}


def _open_transaction(world: World) -> Fields:
    _none_open(world)
    world.producer.add("AddPartitionsToTxn")
    return {}


#: What has to happen before a request is measured, and the fields that come of it.
_PREPARED: dict[str, Callable[[World], Fields]] = {
    "AddOffsetsToTxn": _none_open,
    "AddPartitionsToTxn": _none_open,
    "ConsumerGroupDescribe": _consumer_group,
    "ConsumerGroupHeartbeat": _consumer,
    "CreatePartitions": _partition_to_create,
    "CreateTopics": _new_topic,
    "DeleteGroups": _offsets_without_members,
    "DeleteRecords": _records_to_delete,
    "DeleteTopics": _topic_to_delete,
    "DescribeGroups": _stable_member,
    "DescribeTransactions": _open_transaction,
    "EndTxn": _end_txn,
    "Heartbeat": _stable_member,
    "JoinGroup": _member,
    "LeaveGroup": _leave,
    "OffsetCommit": _stable_member,
    "OffsetDelete": _offsets_without_members,
    "OffsetFetch": _committed,
    "Produce": _produce,
    "SyncGroup": _joined,
    "TxnOffsetCommit": _txn_offset_commit,
}
