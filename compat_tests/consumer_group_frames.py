"""Members of consumer groups (KIP-848) as bytes over a socket: every wrong word, no retries.

kio's message classes encode and decode what kafka-python does not know. A `ConsumerMember` is one
connection; it knows its id, and the epoch and the assignment that it was told last.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from typing import Any
from uuid import UUID

from kio.serial import entity_reader, entity_writer

from compat_tests.group_frames import Code, Member
from compat_tests.raw import Connection

HEARTBEAT, DESCRIBE = 68, 69
#: (topic id, partitions)
Partitions = Mapping[UUID, Sequence[int]]


class ConsumerMember(Member):
    """A would-be member of `group`; `member_id` is its own to make, as clients do since v1."""

    def __init__(self, bootstrap: str, group: str, instance: str | None = None) -> None:
        super().__init__(bootstrap, group, instance)
        self.member_id = str(uuid.uuid4())
        self.member_epoch = 0
        self.assigned: dict[UUID, tuple[int, ...]] = {}

    def enter_with(self, *topics: str, **fields: Any) -> Any:
        """Join, reading these topics."""
        said = {"subscribed_topic_names": topics, "rebalance_timeout_ms": 60_000, "owned": {}}
        return self.beat(0, **{**said, **fields})

    def beat(self, epoch: int | None = None, *, version: int = 1, **fields: Any) -> Any:
        """Send a heartbeat with this epoch, or the member's own; `owned` by topic id."""
        request = schema(HEARTBEAT, version, "request")
        module = import_module(request.__module__)
        owned: Partitions | None = fields.pop("owned", None)
        timeout_ms = fields.pop("rebalance_timeout_ms", -1)
        said = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch if epoch is None else epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "rebalance_timeout": timedelta(milliseconds=timeout_ms),
            "subscribed_topic_names": None,
            "server_assignor": None,
            "topic_partitions": None
            if owned is None
            else tuple(
                module.TopicPartitions(topic_id=topic, partitions=tuple(partitions))
                for topic, partitions in owned.items()
            ),
            **({"subscribed_topic_regex": None} if version else {}),
            **fields,
        }
        answer = call_kio(self, HEARTBEAT, version, request(**said))
        if answer.error_code == Code.NONE:
            self.member_id = answer.member_id or self.member_id
            self.member_epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {
                    each.topic_id: each.partitions for each in answer.assignment.topic_partitions
                }
        return answer

    def code(self, epoch: int | None = None, **fields: Any) -> Code:
        """Return what a heartbeat is refused with, or NONE."""
        return Code(self.beat(epoch, **fields).error_code)

    def described(self, group: str | None = None, version: int = 1) -> Any:
        """Return the group as ConsumerGroupDescribe has it."""
        request = schema(DESCRIBE, version, "request")(
            group_ids=(self.group if group is None else group,), include_authorized_operations=False
        )
        return call_kio(self, DESCRIBE, version, request).groups[0]


def call_kio(connection: Connection, api_key: int, version: int, request: Any) -> Any:
    """Return the answer to a request of kio's: of HEARTBEAT or DESCRIBE."""
    body = BytesIO()
    entity_writer(type(request))(body, request)
    read = entity_reader(schema(api_key, version, "response"))
    return connection.routed(
        lambda: read(connection.call_bytes(api_key, version, body.getvalue()), 5)[0]
    )


def schema(api_key: int, version: int, side: str) -> Any:
    """Return kio's class of a `request` or a `response`."""
    name = {HEARTBEAT: "consumer_group_heartbeat", DESCRIBE: "consumer_group_describe"}[api_key]
    module = import_module(f"kio.schema.{name}.v{version}.{side}")
    words = "".join(word.capitalize() for word in name.split("_"))
    return getattr(module, words + side.capitalize())
