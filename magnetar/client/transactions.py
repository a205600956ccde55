"""Transactions as their coordinators and partitions describe them: list, describe, find hanging.

Works on Apache Kafka too, which leaves out what magnetar tells in tagged fields: the TxnId, the
client, and joint transactions (`wire.transaction_tags`). Source: KIP-664.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any

from magnetar.client.cluster import Client, TopicPartition
from magnetar.client.errors import ClientError, NotFound, check
from magnetar.client.partitions import OpenProducer, describe_open, held_back
from wire.error_code import ErrorCode
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.transaction_tags import (
    CHILDREN_TAG,
    CLIENT_TAG,
    HIDDEN_TAG,
    PARENT_TAG,
    SHARDS_TAG,
    TXN_ID_TAG,
    VOTED_TAG,
    decode_children,
    decode_client,
    decode_shards,
)

_DURATION_FILTER_SINCE, _PATTERN_SINCE = 1, 2


class State(StrEnum):
    """The states of a transactional id, as Kafka's brokers spell them; VOTED is magnetar's."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    VOTED = "Voted"


#: The states in which a transaction may hold back readers.
OPEN_STATES = frozenset(
    {
        State.ONGOING,
        State.PREPARE_COMMIT,
        State.PREPARE_ABORT,
        State.PREPARE_EPOCH_FENCE,
        State.VOTED,
    }
)
#: The state shown for a parent that was never initialised, or has expired, and has children.
UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Transaction:
    """A transactional id, as its coordinator and its partitions describe it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    txn_id: str | None
    timeout_ms: int
    started_ms: int
    """-1 before the first transaction. In the state UNKNOWN, producer id and epoch are -1 too."""
    partitions: Sequence[TopicPartition]
    parent_id: str | None = None
    """The parent, if this is a child in joint transactions."""
    children: Sequence[str] = ()
    """The children of a parent that are open or have voted."""
    open_in: list[OpenProducer] = field(default_factory=list)
    """The partitions in which the transaction has data without a marker."""
    client_id: str = ""
    client_address: str = ""
    """Who last spoke for the id: magnetar tells it, from its own memory."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def has_voted(self) -> bool:
        return self.state == State.VOTED

    def open_for_ms(self, now_ms: int) -> int:
        """Return the time since the transaction began, by this machine's clock."""
        return max(now_ms - self.started_ms, 0)

    def to_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "txn_id": self.txn_id,
            "state": self.state,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "coordinator": self.coordinator,
            "timeout_ms": self.timeout_ms,
            "started_ms": self.started_ms if self.started_ms >= 0 else None,
            "open_for_ms": self.open_for_ms(now_ms) if self.is_open else None,
            "partitions": [
                {"topic": topic, "partition": partition} for topic, partition in self.partitions
            ],
            "parent": self.parent_id,
            "children": list(self.children),
            "client_id": self.client_id or None,
            "client_address": self.client_address or None,
            "open_in": [each.to_json() for each in self.open_in],
        }


def now_ms() -> int:
    return int(time.time() * 1000)


def list_transactions(
    client: Client,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
    must_see_all: bool = False,
) -> list[Transaction]:
    """Return the transactions that pass all filters, by transactional id, children behind parents.

    ClientError if a broker is too old for a filter, if `pattern` is not a regular expression, or,
    with `must_see_all`, if some may be missing. Apache Kafka does not tell that.
    """
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids)
    )
    at_least = 0
    if longer_than_ms >= 0:
        request.duration_filter, at_least = longer_than_ms, _DURATION_FILTER_SINCE
    if pattern is not None:
        request.transactional_id_pattern, at_least = pattern, _PATTERN_SINCE
    found: dict[int, list[str]] = {}
    answers: list[ListTransactionsResponse] = []
    # Every broker coordinates some of the ids.
    for node_id in client.node_ids:
        ask = partial(
            client.call, request, ListTransactionsResponse, node_id=node_id, at_least=at_least
        )
        response = client.retry_transient(ask, attrgetter("error_code"))
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise ClientError(f"{pattern!r} is no regular expression of RE2.")
        check(response.error_code, f"listing the transactions of broker {node_id}")
        answers.append(response)
        listed = [each.transactional_id for each in response.transaction_states]
        if listed:
            found[node_id] = listed
    if must_see_all:
        _check_whole(answers)
    # A transaction may have changed its state since it was listed.
    transactions = [
        one
        for one in _describe(client, found, skip_unknown=True)
        if not states or one.state in states
    ]
    return sorted(
        transactions, key=lambda one: (one.parent_id or one.transactional_id, one.transactional_id)
    )


def describe_children(
    client: Client, transactions: Iterable[Transaction]
) -> dict[str, list[Transaction]]:
    """Return the children that are open or have voted, by their parent's id."""
    by_node: dict[int, list[str]] = {}
    for one in transactions:
        if one.children:
            by_node.setdefault(one.coordinator, []).extend(one.children)
    found: dict[str, list[Transaction]] = {}
    # A parent's coordinator is its children's too: their ids hash as the parent's does.
    for child in _describe(client, by_node, skip_unknown=True):
        if child.parent_id is not None:
            found.setdefault(child.parent_id, []).append(child)
    return found


def describe(client: Client, transactional_ids: Sequence[str]) -> list[Transaction]:
    """Return these transactions, in this order.

    ClientError for an unknown id, unless it is the parent of children that are open or have voted.
    """
    found = _describe(client, client.coordinators(transactional_ids), skip_unknown=False)
    by_id = {each.transactional_id: each for each in found}
    return [by_id[transactional_id] for transactional_id in dict.fromkeys(transactional_ids)]


def find_hanging(
    client: Client, partitions: Iterable[TopicPartition] | None, older_than_ms: int
) -> list[OpenProducer]:
    """Return the producers with a transaction that no coordinator knows, in these partitions.

    `partitions` None: in all of them. A transaction with a batch younger than `older_than_ms` is
    left out: below the longest transaction timeout it may simply be at work. ClientError if this
    user may not describe all transactions.
    """
    leaders = client.topics(None if partitions is None else {topic for topic, _ in partitions})
    wanted = leaders if partitions is None else set(partitions)
    now = now_ms()
    suspects = [
        each
        for each in describe_open(client, leaders, wanted)
        if now - each.last_timestamp > older_than_ms
    ]
    if not suspects:
        return []
    # Asked after the partitions: a transaction that began meanwhile is known here, and not taken
    # for a hanging one.
    known = owners(client, suspects, must_see_all=True)
    return held_back(
        client, leaders, [each for each in suspects if (each.producer_id, each.place) not in known]
    )


def owners(
    client: Client, open_producers: Iterable[OpenProducer], *, must_see_all: bool = False
) -> dict[tuple[int, TopicPartition], Transaction]:
    """Return the open transactions of these producers, by producer id and partition.

    ClientError as `list_transactions`.
    """
    producer_ids = sorted({each.producer_id for each in open_producers})
    return {
        (transaction.producer_id, partition): transaction
        # By producer id and partition, not by epoch: a fenced epoch's data is ended by its
        # coordinator.
        for transaction in list_transactions(
            client, producer_ids=producer_ids, must_see_all=must_see_all
        )
        if transaction.is_open
        for partition in transaction.partitions
    }


def fill_open_partitions(client: Client, transactions: Sequence[Transaction]) -> None:
    """Fill in `open_in` of the transactions that are open."""
    ongoing = {one.producer_id: one for one in transactions if one.is_open}
    wanted = {partition for one in ongoing.values() for partition in one.partitions}
    if not wanted:
        return
    leaders = client.topics({topic for topic, _ in wanted})
    found = describe_open(client, leaders, wanted & leaders.keys())
    for each in held_back(client, leaders, [one for one in found if one.producer_id in ongoing]):
        ongoing[each.producer_id].open_in.append(each)


def _describe(
    client: Client, by_node: dict[int, list[str]], *, skip_unknown: bool
) -> list[Transaction]:
    found = []
    for node_id, transactional_ids in by_node.items():
        request = DescribeTransactionsRequest(transactional_ids=transactional_ids)
        response = client.call(request, DescribeTransactionsResponse, node_id=node_id)
        for state in response.transaction_states:
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                if skip_unknown:
                    continue
                # The coordinator holds children of a parent that it does not know: they may wait
                # for it.
                if CHILDREN_TAG not in dict(state.unknown_tags):
                    raise NotFound(f"there is no transactional id {state.transactional_id!r}.")
                state.transaction_state = UNKNOWN
                state.producer_id = state.producer_epoch = state.transaction_start_time_ms = -1
            else:
                check(state.error_code, f"transactional id {state.transactional_id!r}")
            found.append(_transaction(state, node_id))
    return found


def _check_whole(answers: Sequence[ListTransactionsResponse]) -> None:
    """Raise ClientError if the lists of all brokers may lack a transaction.

    Apache Kafka, and releases before, do not tell that.
    """
    tags = [dict(each.unknown_tags) for each in answers]
    if any(HIDDEN_TAG in each for each in tags):
        raise ClientError(
            "this user may not describe every transactional id: a transaction that is not seen"
            " cannot be told from one that no coordinator knows. Ask as a user who may"
            " describe them all."
        )
    if not all(SHARDS_TAG in each for each in tags):
        return
    # The brokers were asked one after the other. A shard that moved meanwhile may be in no list.
    told = [decode_shards(each[SHARDS_TAG]) for each in tags]
    listed = {shard for _, shards in told for shard in shards}
    for shard in range(max((count for count, _ in told), default=0)):
        if shard not in listed:
            raise ClientError(
                f"no broker has told of the transactions in __transaction_state-{shard}: it moves"
                " to another broker, or its broker does not answer. Try again."
            )


def _transaction(state: TransactionState, node_id: int) -> Transaction:
    tags = dict(state.unknown_tags)
    txn_id, parent_id = tags.get(TXN_ID_TAG), tags.get(PARENT_TAG)
    client_id, address = decode_client(tags[CLIENT_TAG]) if CLIENT_TAG in tags else ("", "")
    return Transaction(
        transactional_id=state.transactional_id,
        coordinator=node_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        # Kafka's tools know no such state, so the wire says Ongoing with a tag beside it.
        state=State.VOTED if VOTED_TAG in tags else state.transaction_state,
        txn_id=None if txn_id is None else txn_id_text(txn_id),
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms,
        partitions=sorted(
            (each.topic, index) for each in state.topics for index in each.partitions
        ),
        parent_id=None if parent_id is None else str(parent_id, "utf-8"),
        children=decode_children(tags.get(CHILDREN_TAG, b"")),
        client_id=client_id,
        client_address=address,
    )


def txn_id_text(value: bytes) -> str:
    """Return a TxnId as brokers log it: coordinator partition, epoch, count, producer id."""
    digits = value.hex()
    return "-".join((digits[:4], digits[4:8], digits[8:16], digits[16:]))
