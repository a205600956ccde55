"""What the driver asks brokers: whether they are magnetar's, and the steps of a parent transaction.

confluent-kafka can list no votes and fence nobody but itself, so all of it goes through the
project's own client, in transactions of version 1: its steps can be repeated as they are when a
broker was away in between. Source: docs/joint_transactions.md, KIP-98, KIP-447.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, Self, TypeVar

from coordinator.groups.offsets.store import PROGRESS_TOPIC
from coordinator.transactions.states import State
from magnetar.apis.describe_transactions import CHILDREN_TAG, PARENT_TAG, decode_children
from magnetar.cli.config_queries import Resource, describe_configs
from magnetar.cli.topic_queries import create_topic
from magnetar.client import PASSING, Client, ClientError, Refused, Unreachable, check
from magnetar.config.resource_type import ResourceType
from magnetar.spark.errors import BadOptions, SinkError
from magnetar.spark.progress import Progress, decode_record, encode_metadata, group_of
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

SEPARATOR = "joint.transactions.separator"
_TIMEOUT_MAX = "transaction.max.timeout.ms"
#: The parent's transaction lasts for a few requests; of a driver that dies in it, so long.
_PARENT_TIMEOUT_MS = 60_000
_RETRY_DELAY_S = 0.05
#: The last ones of one group, and of transactions of version 1.
_OFFSET_FETCH, _ADD_PARTITIONS, _TXN_OFFSET_COMMIT, _END_TXN = 7, 3, 4, 4
_PATTERNS_SINCE = 2
_WAITED_FOR = PASSING | {ErrorCode.UNSTABLE_OFFSET_COMMIT}
_NO_PRODUCER = -1

R = TypeVar("R", bound=Message)
T = TypeVar("T")


class Promises(NamedTuple):
    """What the broker's settings say that exactly-once rests on."""

    separator: str
    transaction_timeout_ms_max: int


class Cluster:
    """The brokers, connected to anew when they were away, for `timeout_ms`. A context manager."""

    def __init__(self, bootstrap_servers: str, timeout_ms: int) -> None:
        """Nothing is connected to yet."""
        self.bootstrap_servers = bootstrap_servers
        self._timeout_ms = timeout_ms
        self._client: Client | None = None
        self._coordinators: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def ask(
        self, question: Callable[[Client], T], codes_of: Callable[[T], Iterable[int]] | None = None
    ) -> T:
        """Return what `question` answers, repeated while nobody is there, or a code among
        `codes_of` its answer passes by itself. SinkError: not within the timeout, or refused.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                if self._client is None:
                    self._client = Client(self.bootstrap_servers)
                answer = question(self._client)
            except (Unreachable, Refused) as failure:
                passes = isinstance(failure, Unreachable) or failure.code in PASSING
                self._disconnect()
                if not passes or time.monotonic() > deadline:
                    raise SinkError(self._said(failure)) from None
            except ClientError as failure:
                raise SinkError(self._said(failure)) from None
            else:
                codes = () if codes_of is None else codes_of(answer)
                if _WAITED_FOR.isdisjoint(codes) or time.monotonic() > deadline:
                    return answer
                self._coordinators.clear()
            time.sleep(_RETRY_DELAY_S)

    def promises(self) -> Promises:
        """Return what exactly-once rests on. BadOptions: this is not a magnetar that gives it."""

        def settings(client: Client) -> dict[str, str | None]:
            broker = Resource(ResourceType.BROKER, str(client.node_ids[0]))
            ((_, entries),) = describe_configs(client, [broker], [SEPARATOR, _TIMEOUT_MAX])
            return {entry.name: entry.value for entry in entries}

        found = self.ask(settings)
        instead = "deliveryGuarantee=at-least-once writes without that guarantee."
        if SEPARATOR not in found:
            raise BadOptions(
                f"the broker at {self.bootstrap_servers} is not magnetar, or one without joint "
                f"transactions: a batch cannot be written exactly once. {instead}"
            )
        if not (separator := found[SEPARATOR]):
            raise BadOptions(
                f"the broker at {self.bootstrap_servers} has joint transactions turned off "
                f"({SEPARATOR} is empty): a batch cannot be written exactly once. {instead}"
            )
        return Promises(separator, int(found[_TIMEOUT_MAX] or _PARENT_TIMEOUT_MS))

    def check_topics(self, names: Sequence[str]) -> None:
        """Raise SinkError unless all of these topics exist. None is created."""
        self.ask(lambda client: client.topics(names))

    def provide_progress_topic(self) -> None:
        """Make sure that there is a topic to which records of progress belong."""
        if self.ask(_has_progress_topic):
            return
        self.ask(
            lambda client: create_topic(
                client,
                PROGRESS_TOPIC,
                partitions=1,
                replication_factor=-1,
                configs={},
                if_not_exists=True,
                validate_only=False,
                timeout_ms=self._timeout_ms,
            )
        )

    def coordinator_of(self, client: Client, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, asked once per connection."""
        return self._once(client.coordinators, "transaction", transactional_id)

    def group_coordinator_of(self, client: Client, group_id: str) -> int:
        return self._once(client.group_coordinators, "group", group_id)

    def _once(
        self, find: Callable[[Iterable[str]], dict[int, list[str]]], kind: str, key: str
    ) -> int:
        if (kind, key) not in self._coordinators:
            ((self._coordinators[kind, key], _),) = find([key]).items()
        return self._coordinators[kind, key]

    def _said(self, failure: ClientError) -> str:
        if isinstance(failure, Unreachable):
            what, _, _ = str(failure).partition(". ")
            return f"within {self._timeout_ms} ms (the option brokerTimeoutMs): {what}."
        return f"{self.bootstrap_servers}: {failure}"

    def _disconnect(self) -> None:
        self._coordinators.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close()


class QueryParent:
    """The parent transaction of a query: `committing.Parent` on a cluster.

    With `keeps_record` False nothing is recorded: a write that has no name cannot be repeated.
    """

    def __init__(
        self,
        cluster: Cluster,
        query_id: str,
        *,
        timeout_ms_max: int = _PARENT_TIMEOUT_MS,
        keeps_record: bool = True,
    ) -> None:
        """`timeout_ms_max`: what the broker allows a transaction at most."""
        self._cluster = cluster
        self._query_id = query_id
        self._timeout_ms = min(_PARENT_TIMEOUT_MS, timeout_ms_max)
        self._keeps_record = keeps_record
        self._identity = (_NO_PRODUCER, _NO_PRODUCER)

    def recorded(self) -> Progress | None:
        if not self._keeps_record:
            return None
        group = group_of(self._query_id)
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=PROGRESS_TOPIC, partition_indexes=[0])],
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
        """End what a driver sealed that died before it decided: until then no task may begin.

        BadOptions: the query is itself a child, so it decides nothing.
        """
        found = self._described()
        parent_id = dict(found.unknown_tags).get(PARENT_TAG)
        if parent_id is not None:
            raise BadOptions(
                f"the queryId {self._query_id!r} is a transactional id that votes for "
                f"{str(parent_id, 'utf-8')!r}: choose another one."
            )
        if found.transaction_state == State.ONGOING.label:
            self.initialise()

    def undecided(self) -> Set[str]:
        # As their records say it: their names may be of a time of another separator.
        tags = dict(self._described().unknown_tags)
        return set(decode_children(tags.get(CHILDREN_TAG, b"")))

    def votes(self) -> Set[str]:
        # Letters, digits and whatever is not ASCII stand for themselves in RE2, too.
        pattern = re.escape(self._query_id) + ".+"
        answer = self._decided(
            ListTransactionsRequest(
                state_filters=[State.VOTED.label], transactional_id_pattern=pattern
            ),
            ListTransactionsResponse,
            lambda answer: [answer.error_code],
            at_least=_PATTERNS_SINCE,
        )
        _check(answer.error_code, self._doing("listing its votes"))
        return self.undecided() & {each.transactional_id for each in answer.transaction_states}

    def fence(self, children: Iterable[str]) -> None:
        for child in sorted(children):
            self._initialised(child)

    def record(self, progress: Progress) -> None:
        if not self._keeps_record:
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
            return  # Nobody is there. What was sealed ends with the parent's timeout.
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
        """Return a new producer id and epoch; what an earlier one left open is aborted."""
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
        """Return what is known of the parent, which nobody may have seen yet."""
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
        """Ask the parent's coordinator, which is that of its children too."""

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
            f"took longer than {_PARENT_TIMEOUT_MS // 1000} s, or than the broker's "
            "transaction.max.timeout.ms. The batch can be repeated."
        )
    try:
        check(code, what)
    except Refused as refusal:
        raise SinkError(str(refusal)) from None


def _has_progress_topic(client: Client) -> bool:
    try:
        client.topics([PROGRESS_TOPIC])
    except Refused as refusal:
        if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return False
    return True


def _added(answer: AddPartitionsToTxnResponse) -> int:
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
