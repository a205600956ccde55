"""What coordinators of groups and transactions are asked, in every version: both brokers answer
alike. Every field of every answer, as in `test_client_answers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from compat_tests.answers import ABSENT, MISNAMED, Fields, Script, Topic, differences
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName
from compat_tests.group_frames import Code, assignment, subscription

EVERYTHING_SINCE = 2
GROUPS_SINCE = 8
MEMBERS_FETCH_SINCE = 9
#: Producer ids that no broker of a test has come to.
NOT_MINE, UNKNOWN = 55_555, 77_777
Parts = list[tuple[str, list[int]]]
#: Topic, partition, metadata.
Commit = tuple[Topic, int, str | None]


def offsets_committed(script: Script, orders: Topic) -> None:
    group = f"{orders.name}-{{}}"
    strangers = [
        {"generation_id_or_member_epoch": generation, "member_id": member}
        for generation, member in ((1, "unknown"), (0, ""), (-1, "unknown"))
    ]
    refused: list[Commit] = [(orders, 9, ""), (orders, 0, "x" * 5000), (MISNAMED, 0, "")]
    for version in range(2, 11):
        mine = group.format(version)
        _commit(script, version, mine, [(orders, 0, "said"), (ABSENT, 0, "")])
        _commit(script, version, mine, [(orders, 1, None)])
        for commit in refused:
            _commit(script, version, mine, [commit])
        _commit(script, version, mine, [])
        for missing in ((orders, 9, ""), (ABSENT, 0, "")):
            _commit(script, version, mine, [(orders, 0, ""), missing, (orders, 1, ""), missing])
        _commit(script, version, mine, [(orders, 0, ""), (orders, 1, "")])
        for who in strangers:
            _commit(script, version, mine, [(orders, 0, "")], **who)
            _commit(script, version, f"{mine}-new", [(orders, 0, "")], **who)
    for version in range(1, 11):
        for each in (*map(group.format, (9, 10, "absent")), ""):
            _fetch_offsets(script, version, each, orders)
    # What was committed for the other partition stays, and the group with it.
    for topics in ([(orders, [0]), (orders, [0])], [(orders, [0, 9]), (orders, [0])]):
        asked = [
            {"name": topic.name, "partitions": [{"partition_index": each} for each in indexes]}
            for topic, indexes in topics
        ]
        script.ask(OffsetDeleteRequest, 0, group_id=group.format(9), topics=asked)


def _commit(
    script: Script,
    version: int,
    group: str,
    parts: list[Commit],
    **who: Any,
) -> None:
    no_member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    topics = []
    for topic, index, said in parts:
        committed = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": said}
        topics.append(topic.part(partitions=[{"partition_index": index, **committed}]))
    script.ask(
        OffsetCommitRequest,
        version,
        **{"group_id": group, "topics": topics, "retention_time_ms": -1, **no_member, **who},
    )


def _fetch_offsets(script: Script, version: int, group: str, orders: Topic) -> None:
    no_member = {"member_id": None, "member_epoch": -1}
    topics: list[list[Fields] | None] = [
        *([_part(orders, version, indexes)] for indexes in ([0, 1, 9, -1], [])),
        [_part(ABSENT, version, [0])],
        [],
        *([None] if version >= EVERYTHING_SINCE else []),
    ]
    asked: list[Fields] = [{"topics": each, **no_member} for each in topics]
    if version >= MEMBERS_FETCH_SINCE:
        asked.append({"topics": topics[0], "member_id": "unknown", "member_epoch": 1})
    has_groups = version >= GROUPS_SINCE
    for each in asked:
        old = {"group_id": group, "topics": each["topics"]}
        for stable in (True, False):
            script.ask(
                OffsetFetchRequest,
                version,
                require_stable=stable,
                **({"groups": [{"group_id": group, **each}]} if has_groups else old),
            )


def members(script: Script, orders: Topic) -> None:
    """One life in each version, and what strangers say meanwhile."""
    for version in range(10):
        life = _Life(script, orders, version)
        life.join(protocols=[])
        life.join(session_timeout_ms=1)
        life.join(member_id="unknown")
        answer = life.join()
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            answer = life.join(member_id=answer.member_id)
        me = {"member_id": answer.member_id, "generation_id": answer.generation_id}
        for who in (me | {"member_id": "unknown"}, me | {"generation_id": 9}):
            life.sync(**who)
            life.heartbeat(**who)
        life.describe()
        life.sync(**me)
        life.sync(**me, assignments=[])
        life.describe()
        life.heartbeat(**me)
        life.join(member_id=answer.member_id)
        for member in ("unknown", answer.member_id, answer.member_id):
            life.leave(member)
            life.describe()
        life.heartbeat(**me)


def _part(topic: Topic, version: int, indexes: list[int]) -> Fields:
    if version >= GROUPS_SINCE:
        return topic.part(partition_indexes=indexes)
    return {"name": topic.name, "partition_indexes": indexes}


class _Life:
    """A member that speaks one version of each API, as far as there is one."""

    def __init__(self, script: Script, orders: Topic, version: int) -> None:
        self._script = script
        self._orders = orders.name
        self._version = version
        self._group = f"{orders.name}-{version}"

    def join(self, **fields: Any) -> Any:
        metadata = subscription(self._orders)
        return self._ask(
            JoinGroupRequest,
            9,
            **{
                "session_timeout_ms": 60_000,
                "rebalance_timeout_ms": 60_000,
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": metadata}],
                **fields,
            },
        )

    def sync(self, **fields: Any) -> None:
        assigned = {"member_id": fields["member_id"], "assignment": assignment(self._orders, 0)}
        self._ask(
            SyncGroupRequest,
            5,
            **{
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [assigned],
                **fields,
            },
        )

    def heartbeat(self, **fields: Any) -> None:
        self._ask(HeartbeatRequest, 4, group_instance_id=None, **fields)

    def leave(self, member_id: str) -> None:
        leaving = {"member_id": member_id, "group_instance_id": None}
        self._ask(LeaveGroupRequest, 5, member_id=member_id, members=[leaving])

    def describe(self) -> None:
        groups = [self._group, f"{self._group}-absent", ""]
        version = min(self._version, 6)
        for operations in (True, False):
            self._script.ask(
                DescribeGroupsRequest,
                version,
                groups=groups,
                include_authorized_operations=operations,
            )

    def _ask(self, request: Any, last_version: int, **fields: Any) -> Any:
        version = min(self._version, last_version)
        return self._script.ask(request, version, group_id=self._group, **fields)


def transactions(script: Script, orders: Topic) -> None:
    """One transaction in each version, and what is said of others' meanwhile."""
    for version in range(6):
        _Transaction(script, orders, version).play()


class _Transaction:
    def __init__(self, script: Script, orders: Topic, version: int) -> None:
        self._script = script
        self._orders = orders
        self._version = version
        self._id = f"{orders.name}-{version}"

    def play(self) -> None:
        unknown = {"transactional_id": f"{self._id}-absent"}
        strangers: list[Fields] = [
            *({"transactional_id": each} for each in ("", None)),
            *({"transaction_timeout_ms": timeout_ms} for timeout_ms in (0, -1, 2**31 - 1)),
            *({"producer_id": NOT_MINE, "producer_epoch": epoch} for epoch in (-1, 0)),
            {"producer_id": -2, "producer_epoch": -1},
            {"producer_id": -1, "producer_epoch": -2},
            unknown | {"producer_id": UNKNOWN, "producer_epoch": 0},
        ]
        for who in strangers:
            self._init(**who)
        self._describe()
        begun = self._init()
        me = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        others: list[Fields] = [
            me | {"producer_id": NOT_MINE},
            me | {"producer_epoch": 9},
            me | unknown,
        ]
        partitions: list[Parts] = [
            *([(name, [0])] for name in (ABSENT.name, MISNAMED.name, "__consumer_offsets")),
            *([(self._orders.name, indexes)] for indexes in ([9], [-1], [0, 9])),
            [(self._orders.name, [0]), (ABSENT.name, [0])],
            [],
        ]
        for asked in partitions:
            self._add(asked, **me)
        good: Parts = [(self._orders.name, [0])]
        for who in others:
            self._add(good, **who)
            self._add_offsets(**who)
        self._describe()
        self._add(good, verify_only=True, **me)
        self._add(good, **me)
        self._add(good, verify_only=True, **me)
        self._add_offsets(group_id="", **me)
        self._add_offsets(**me)
        self._describe()
        # What another id is told is decided by the data's transaction here, by the id in Kafka.
        for who in (me, *others[:2]):
            self._commit_offset(self._orders, **who)
        for topic in (ABSENT, MISNAMED):
            self._commit_offset(topic, **me)
        self._commit_offset(self._orders, **me, generation_id=3, member_id="unknown")
        for who in others:
            self._end(**who)
        self._end(**me)

    def _init(self, **fields: Any) -> Any:
        usual: Fields = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        return self._ask(InitProducerIdRequest, 5, **{**usual, **fields})

    def _add(self, parts: Parts, **fields: Any) -> None:
        who: Fields = {"transactional_id": self._id, "verify_only": False, **fields}
        who["topics"] = [{"name": name, "partitions": indexes} for name, indexes in parts]
        self._script.ask(
            AddPartitionsToTxnRequest,
            self._version,
            transactions=[who],
            **{f"v3_and_below_{name}": each for name, each in who.items() if name != "verify_only"},
        )

    def _add_offsets(self, **fields: Any) -> None:
        self._ask(AddOffsetsToTxnRequest, 4, **{"group_id": self._id, **fields})

    def _commit_offset(self, topic: Topic, **fields: Any) -> None:
        committed = {
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        no_member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": topic.name, "partitions": [{"partition_index": 0, **committed}]}]
        self._ask(
            TxnOffsetCommitRequest,
            5,
            **{"group_id": self._id, "topics": topics, **no_member, **fields},
        )

    def _end(self, **fields: Any) -> None:
        self._ask(EndTxnRequest, 5, committed=True, **fields)

    def _describe(self) -> None:
        ids = [self._id, f"{self._id}-absent", ""]
        self._script.ask(DescribeTransactionsRequest, 0, transactional_ids=ids)

    def _ask(self, request: Any, last_version: int, **fields: Any) -> Any:
        version = min(self._version, last_version)
        return self._script.ask(request, version, **{"transactional_id": self._id, **fields})


SCRIPTS = [offsets_committed, members, transactions]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_coordinators_are_answered_alike(
    both_brokers: tuple[Broker, Broker], name: MakeName, script: Callable[[Script, Topic], None]
) -> None:
    assert differences(both_brokers, name("orders"), script) == []
