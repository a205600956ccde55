"""The parent transaction of a query: each step of it is a request to its coordinator.

The transaction is of version 1, whose steps can be repeated unchanged after a broker was away.
Source: docs/joint_transactions.md, KIP-98, KIP-447.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from typing import TypeVar

from magnetar.client import Client, Refused
from magnetar.client.errors import check
from magnetar.client.transactions import State
from magnetar.spark.cluster import PARENT_TIMEOUT_MS, Cluster
from magnetar.spark.errors import BadOptions, SinkError
from magnetar.spark.progress import (
    PROGRESS_TOPIC,
    Progress,
    decode_record,
    encode_metadata,
    group_of,
)
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from wire.transaction_tags import CHILDREN_TAG, PARENT_TAG, decode_children

#: The last versions that ask for one group, and the last of transaction version 1.
_OFFSET_FETCH, _ADD_PARTITIONS, _TXN_OFFSET_COMMIT, _END_TXN = 7, 3, 4, 4
#: ListTransactions takes a pattern from this version on (KIP-1152).
_PATTERNS_SINCE = 2
_NO_PRODUCER = -1

R = TypeVar("R", bound=Message)


class QueryParent:
    """The parent transaction of a query: `committing.Parent` on a cluster.

    `keeps_record` False: nothing is recorded, because a write without a name is never repeated.
    """

    def __init__(
        self,
        cluster: Cluster,
        query_id: str,
        *,
        timeout_ms_max: int = PARENT_TIMEOUT_MS,
        keeps_record: bool = True,
    ) -> None:
        """`timeout_ms_max`: the longest transaction timeout that the broker allows."""
        self._cluster = cluster
        self._query_id = query_id
        self._timeout_ms = min(PARENT_TIMEOUT_MS, timeout_ms_max)
        self._keeps_record = keeps_record
        self._identity = (_NO_PRODUCER, _NO_PRODUCER)

    def recorded(self) -> Progress | None:
        if not self._keeps_record:
            return None
        group = group_of(self._query_id)
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=PROGRESS_TOPIC, partition_indexes=[0])],
            # A decision under way answers UNSTABLE_OFFSET_COMMIT, which `ask` waits out: else a
            # decided batch would look unwritten.
            require_stable=True,
        )

        def fetch(client: Client) -> OffsetFetchResponse:
            node_id = self._cluster.group_coordinator_of(client, group)
            return client.call(request, OffsetFetchResponse, node_id=node_id, at_most=_OFFSET_FETCH)

        answer = self._cluster.ask(
            fetch, lambda answer: [answer.error_code, answer.topics[0].partitions[0].error_code]
        )
        found = answer.topics[0].partitions[0]
        _check(answer.error_code or found.error_code, f"the progress in group {group}")
        if found.committed_offset < 0:
            return None
        return decode_record(found.committed_offset, found.metadata or "", self._query_id)

    def initialise(self) -> None:
        self._identity = self._initialised(self._query_id)

    def end_abandoned(self) -> None:
        """Abort the votes that a dead driver sealed and did not decide: no task may begin before.

        BadOptions: the query's id names a child of another parent, so it can decide nothing.
        """
        found = self._described()
        parent_id = dict(found.unknown_tags).get(PARENT_TAG)
        if parent_id is not None:
            raise BadOptions(
                f"the queryId {self._query_id!r} is a transactional id that votes for "
                f"{str(parent_id, 'utf-8')!r}: choose another one."
            )
        # Ongoing although no driver is at work: sealed votes. Initialising aborts them.
        if found.transaction_state == State.ONGOING:
            self.initialise()

    def undecided(self) -> Set[str]:
        # Their records name their parent. Their names do not: the separator may have changed.
        tags = dict(self._described().unknown_tags)
        return set(decode_children(tags.get(CHILDREN_TAG, b"")))

    def votes(self) -> Set[str]:
        # What re.escape leaves as it is, RE2 takes literally too: letters, digits, non-ASCII.
        pattern = re.escape(self._query_id) + ".+"
        answer = self._decided(
            ListTransactionsRequest(state_filters=[State.VOTED], transactional_id_pattern=pattern),
            ListTransactionsResponse,
            lambda answer: [answer.error_code],
            at_least=_PATTERNS_SINCE,
        )
        _check(answer.error_code, self._doing("listing its votes"))
        # The pattern finds names, of which some may be of another parent; the parent's own list
        # says whose they are.
        return self.undecided() & {each.transactional_id for each in answer.transaction_states}

    def fence(self, children: Iterable[str]) -> None:
        # InitProducerId aborts what the child has open, and bumps its epoch: a task that is still
        # at work can write nothing more.
        for child in sorted(children):
            self._initialised(child)

    def record(self, progress: Progress) -> None:
        if not self._keeps_record:
            # Without a record the parent needs a partition all the same: its transaction begins
            # with one, and that seals the votes.
            self._seal()
            return
        group = group_of(self._query_id)
        producer_id, producer_epoch = self._identity
        added = self._decided(
            AddOffsetsToTxnRequest(
                transactional_id=self._query_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group,
            ),
            AddOffsetsToTxnResponse,
            lambda answer: [answer.error_code],
        )
        _check(added.error_code, self._doing("recording its progress"))
        position = TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=progress.batch_id,
            committed_metadata=encode_metadata(progress),
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._query_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=PROGRESS_TOPIC, partitions=[position])],
        )

        def commit(client: Client) -> TxnOffsetCommitResponse:
            node_id = self._cluster.group_coordinator_of(client, group)
            return client.call(
                request, TxnOffsetCommitResponse, node_id=node_id, at_most=_TXN_OFFSET_COMMIT
            )

        staged = self._cluster.ask(
            commit, lambda answer: [answer.topics[0].partitions[0].error_code]
        )
        _check(staged.topics[0].partitions[0].error_code, self._doing("recording its progress"))

    def commit(self) -> None:
        _check(self._end(committed=True), self._doing("committing"))

    def abort(self) -> None:
        try:
            code = self._end(committed=False)
        except SinkError:
            return  # No broker is reachable. The parent's timeout aborts the sealed votes.
        # The transaction of a replaced parent was aborted by what replaced it.
        if code not in (ErrorCode.NONE, *_REPLACED):
            _check(code, self._doing("aborting"))

    def _seal(self) -> None:
        producer_id, producer_epoch = self._identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._query_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=PROGRESS_TOPIC, partitions=[0])],
        )
        answer = self._decided(
            request, AddPartitionsToTxnResponse, lambda answer: [_added(answer)], _ADD_PARTITIONS
        )
        _check(_added(answer), self._doing("sealing the votes"))

    def _end(self, *, committed: bool) -> int:
        producer_id, producer_epoch = self._identity
        request = EndTxnRequest(
            transactional_id=self._query_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=committed,
        )
        answer = self._decided(
            request, EndTxnResponse, lambda answer: [answer.error_code], _END_TXN
        )
        return answer.error_code

    def _initialised(self, transactional_id: str) -> tuple[int, int]:
        """Return a new producer id and epoch; the open transaction of earlier ones is aborted."""
        answer = self._decided(
            InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=_NO_PRODUCER,
                producer_epoch=_NO_PRODUCER,
            ),
            InitProducerIdResponse,
            lambda answer: [answer.error_code],
        )
        _check(answer.error_code, f"fencing {transactional_id!r}")
        return answer.producer_id, answer.producer_epoch

    def _described(self) -> TransactionState:
        """Return what the coordinator knows of the parent; an unknown parent is no error."""
        answer = self._decided(
            DescribeTransactionsRequest(transactional_ids=[self._query_id]),
            DescribeTransactionsResponse,
            lambda answer: [answer.transaction_states[0].error_code],
        )
        (found,) = answer.transaction_states
        if found.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            _check(found.error_code, self._doing("looking for its children"))
        return found

    def _decided(
        self,
        request: Message,
        response_class: type[R],
        codes_of: Callable[[R], Iterable[int]],
        at_most: int | None = None,
        *,
        at_least: int = 0,
    ) -> R:
        """Ask the parent's coordinator, which coordinates its children too."""

        def call(client: Client) -> R:
            node_id = self._cluster.coordinator_of(client, self._query_id)
            return client.call(
                request, response_class, node_id=node_id, at_most=at_most, at_least=at_least
            )

        return self._cluster.ask(call, codes_of)

    def _doing(self, what: str) -> str:
        return f"queryId {self._query_id!r}, {what}"


#: Another driver of the query has taken over, or the parent's timeout was faster.
_REPLACED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
)


def _check(code: int, what: str) -> None:
    """Raise SinkError unless `code` is NONE."""
    if code in _REPLACED:
        raise SinkError(
            f"{what}: {ErrorCode(code).name}. Another run with this queryId has taken over, or it "
            f"took longer than {PARENT_TIMEOUT_MS // 1000} s, or than the broker's "
            "transaction.max.timeout.ms. The batch can be repeated."
        )
    try:
        check(code, what)
    except Refused as refusal:
        raise SinkError(str(refusal)) from None


def _added(answer: AddPartitionsToTxnResponse) -> int:
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
