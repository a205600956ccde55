"""The brokers of a cluster: which of them a request goes to, and connections to them.

A request goes to any broker, to a named one, to the coordinator of a transactional id or of a
group, or to the leader of a partition. Requests are not retried, with one exception: errors that
end by themselves (`retry_transient`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Self, TypeVar

from magnetar.client.connection import CLIENT_ID, Address, Connection
from magnetar.client.errors import ClientError, NotFound, Unreachable, check
from magnetar.client.security import PLAINTEXT, Security
from wire.address import parse_address
from wire.error_code import ErrorCode
from wire.message import Message
from wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 10.0
RETRY_DELAY_S = 0.1
_GROUP, _TRANSACTION = 0, 1
_COORDINATED = ("group", "transactional id")
#: From this version on a request may name several keys, in a field of their own (KIP-699).
_COORDINATOR_KEYS_SINCE = 4

R = TypeVar("R", bound=Message)
T = TypeVar("T")
TopicPartition = tuple[str, int]
#: The node id of each partition's leader.
Leaders = Mapping[TopicPartition, int]

#: The coordinator loads its state, moves, or its internal topic is just being created.
TRANSIENT = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
#: The same where offsets are read: one is unstable until the markers of a transaction are written.
WAITED_FOR = TRANSIENT | {ErrorCode.UNSTABLE_OFFSET_COMMIT}


def transient_of(codes: Iterable[int]) -> int:
    """Return the first of these codes that is one of TRANSIENT; NONE if none is."""
    return next((code for code in codes if code in TRANSIENT), ErrorCode.NONE)


class Client:
    """A cluster, whose brokers are connected to when they are needed. A context manager."""

    def __init__(
        self,
        bootstrap_servers: str = DEFAULT_BOOTSTRAP,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        client_id: str = CLIENT_ID,
        security: Security = PLAINTEXT,
    ) -> None:
        """Connect to the first of `host:port[,host:port...]` that answers.

        `timeout_s` bounds the wait for each single response.
        """
        self.timeout_s = timeout_s
        #: Brokers that are not asked, whatever they lead and coordinate: they do not answer.
        self.left_out: frozenset[int] = frozenset()
        self._client_id = client_id
        self._security = security
        self._addresses: dict[int, Address] = {}
        self._connections: dict[int, Connection] = {}
        self._bootstrap = self._connect_to_first(parse_addresses(bootstrap_servers))
        try:
            # An empty list asks for no topic: the brokers' addresses are enough, and null would
            # bring the metadata of every topic.
            self._learn(self._bootstrap.call(MetadataRequest(topics=[]), MetadataResponse))
        except ClientError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._bootstrap.close()
        for connection in self._connections.values():
            connection.close()

    @property
    def timeout_ms(self) -> int:
        return round(self.timeout_s * 1000)

    @property
    def node_ids(self) -> list[int]:
        """Every broker of the cluster, but for those that are left out."""
        return sorted(self._addresses.keys() - self.left_out)

    def asks(self, node_id: int) -> bool:
        """Return whether questions go to this broker; -1 stands for none."""
        return node_id >= 0 and node_id not in self.left_out

    def again(self, left_out: frozenset[int], timeout_s: float) -> Self:
        """Return another client of the cluster, by the first known broker that answers.

        It leaves out these, and those that have not answered. Unreachable: none has.
        """
        other = copy(self)
        other.left_out, other.timeout_s, other._connections = left_out, timeout_s, {}
        failures = []
        for address in other._known_addresses():
            try:
                other._bootstrap = other._connect(address)
                return other
            except ClientError as failure:
                failures.append(failure)
                node_id = other._node_at(address)
                if node_id is not None and isinstance(failure, Unreachable):
                    other.left_out |= {node_id}
        raise failures[0]

    def call(
        self,
        request: Message,
        response_class: type[R],
        *,
        node_id: int | None = None,
        at_least: int = 0,
        at_most: int | None = None,
        extra_wait_s: float = 0.0,
    ) -> R:
        """Return the response of broker `node_id` (None: any) in a version within the bounds.

        Unreachable names the broker, and is raised at once for one that is left out.
        """
        try:
            connection = self._any() if node_id is None else self._connection(node_id)
            connection.timeout_s = self.timeout_s
            return connection.call(
                request,
                response_class,
                at_least=at_least,
                at_most=at_most,
                extra_wait_s=extra_wait_s,
            )
        except Unreachable as failure:
            failure.node_id = self._node_at(self._bootstrap.address) if node_id is None else node_id
            raise

    def serves(self, request_class: type[Message]) -> bool:
        """Return whether the cluster and this client share a version of this request."""
        return self._bootstrap.serves(request_class)

    def version_for(self, request_class: type[Message]) -> int:
        """Return the highest version of a request that the first broker and this client speak."""
        return self._bootstrap.version_for(request_class)

    def coordinators(self, transactional_ids: Iterable[str]) -> dict[int, list[str]]:
        """Return the transactional ids by the broker that coordinates them."""
        return self._coordinators(transactional_ids, _TRANSACTION)

    def group_coordinators(self, group_ids: Iterable[str]) -> dict[int, list[str]]:
        """Return the groups by the broker that coordinates them."""
        return self._coordinators(group_ids, _GROUP)

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id."""
        return self._coordinator_of(transactional_id, _TRANSACTION)

    def group_coordinator_of(self, group_id: str) -> int:
        """Return the broker that coordinates a group."""
        return self._coordinator_of(group_id, _GROUP)

    def metadata(self, names: Iterable[str] | None = None) -> MetadataResponse:
        """Return what the cluster says of these topics (None: of all). It creates none of them."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        # A broker with auto.create.topics.enable creates a missing topic for its metadata's sake,
        # and a misspelt name in a command would leave a topic behind.
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = self.call(request, MetadataResponse)
        self._learn(response)
        return response

    def topics(self, names: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Return every partition of the topics (None: of all) with its leader's node id.

        Refused for a topic that does not exist. Partitions without a leader that is asked are left
        out.
        """
        leaders = self.partitions(names).items()
        return {place: leader for place, leader in leaders if self.asks(leader)}

    def partitions(self, names: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Return every partition of the topics (None: of all) with its leader's node id; -1: it has
        none at present.

        Refused for a topic that does not exist.
        """
        leaders = {}
        for topic in self.metadata(names).topics:
            # The errors of single partitions are not checked: a partition without a leader is no
            # reason to refuse the others.
            check(topic.error_code, f"topic {topic.name}")
            for partition in topic.partitions:
                leaders[topic.name or "", partition.partition_index] = partition.leader_id
        return leaders

    def retry_transient(self, ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
        """Return the response of `ask`, called again while its code is one of TRANSIENT.

        After the timeout the response is returned whatever its code: the caller checks the code.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            response = ask()
            if code_of(response) not in TRANSIENT or time.monotonic() > deadline:
                return response
            time.sleep(RETRY_DELAY_S)

    def _coordinators(self, ids: Iterable[str], kind: int) -> dict[int, list[str]]:
        keys = list(dict.fromkeys(ids))
        if len(self._addresses) == 1 and keys:
            # One broker coordinates everything. It is asked once, because the question makes it
            # create its internal topic.
            return {self._coordinator_of(keys[0], kind): keys}
        is_one_question = (
            self._bootstrap.version_for(FindCoordinatorRequest) >= _COORDINATOR_KEYS_SINCE
        )
        questions = [keys] if is_one_question and keys else [[key] for key in keys]
        by_node: dict[int, list[str]] = {}
        for asked in questions:
            for key, node_id in self._find_coordinators(asked, kind):
                by_node.setdefault(node_id, []).append(key)
        return by_node

    def _coordinator_of(self, key: str, kind: int) -> int:
        ((_, node_id),) = self._find_coordinators([key], kind)
        return node_id

    def _find_coordinators(self, keys: Sequence[str], kind: int) -> list[tuple[str, int]]:
        """Return each key with its coordinator. Brokers of older versions take one key."""
        version = self._bootstrap.version_for(FindCoordinatorRequest)
        request = FindCoordinatorRequest(key_type=kind)
        if version >= _COORDINATOR_KEYS_SINCE:
            request.coordinator_keys = list(keys)
        else:
            (request.key,) = keys

        def ask() -> list[Coordinator]:
            response = self.call(request, FindCoordinatorResponse)
            if version >= _COORDINATOR_KEYS_SINCE:
                return response.coordinators
            code, node_id = response.error_code, response.node_id
            return [Coordinator(key=request.key, node_id=node_id, error_code=code)]

        found = self.retry_transient(
            ask, lambda found: transient_of(each.error_code for each in found)
        )
        for each in found:
            check(each.error_code, f"the coordinator of {_COORDINATED[kind]} {each.key!r}")
        return [(each.key, each.node_id) for each in found]

    def _connect(self, address: Address) -> Connection:
        return Connection(address, self.timeout_s, self._client_id, self._security)

    def _connect_to_first(self, addresses: list[Address]) -> Connection:
        failures = []
        for address in addresses:
            try:
                return self._connect(address)
            except ClientError as failure:
                failures.append(failure)
        # The first address is the one that the user named first, so its failure explains most.
        raise failures[0]

    def _any(self) -> Connection:
        """Return the first connection, made anew after a request that got no response.

        If its broker is away, it is made to another one of the cluster.
        """
        is_left_out = self._node_at(self._bootstrap.address) in self.left_out
        if is_left_out or not self._bootstrap.is_usable:
            self._bootstrap.close()
            self._bootstrap = self._connect_to_first(self._known_addresses())
        return self._bootstrap

    def _known_addresses(self) -> list[Address]:
        """Return where the cluster may be reached, the own broker's address first."""
        known = dict.fromkeys([self._bootstrap.address, *self._addresses.values()])
        asked = [each for each in known if self._node_at(each) not in self.left_out]
        return asked or list(known)

    def _node_at(self, address: Address) -> int | None:
        """Return the broker that advertises this address; None: none does."""
        found = (each for each, there in self._addresses.items() if there == address)
        return next(found, None)

    def _connection(self, node_id: int) -> Connection:
        if node_id in self.left_out:
            raise Unreachable(f"node {node_id} does not answer.")
        connection = self._connections.get(node_id)
        # The late response to an abandoned request would be read as the response to the next one.
        if connection is not None and not connection.is_usable:
            connection.close()
            connection = None
        if connection is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise NotFound(f"broker {node_id} is not among {self.node_ids}.")
            connection = self._connections[node_id] = self._connect(address)
        return connection

    def _learn(self, response: MetadataResponse) -> None:
        # Replaced, not merged: a broker that has left the cluster must not be asked any more.
        self._addresses = {each.node_id: (each.host, each.port) for each in response.brokers}


def parse_addresses(text: str, place: str = "bootstrap servers") -> list[Address]:
    """Return the addresses in `host:port[,host:port...]`.

    ClientError, which names `place`: one is not host:port.
    """
    try:
        addresses = [parse_address(part.strip()) for part in text.split(",")]
    except ValueError as mistake:
        raise ClientError(f"{place}: {mistake}") from None
    return [(host or "127.0.0.1", port) for host, port in addresses]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions' indexes by topic, both in order."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found


def by_leader(
    leaders: Leaders, wanted: Iterable[TopicPartition]
) -> Iterator[tuple[int, dict[str, list[int]]]]:
    """Yield each leader with its share of the wanted partitions, `by_topic`.

    A partition without a known leader goes to any broker, whose response says what is wrong.
    """
    # The smallest id, so that the same question goes to the same broker each time.
    any_node = min(leaders.values(), default=-1)
    by_node: dict[int, list[TopicPartition]] = {}
    for partition in wanted:
        by_node.setdefault(leaders.get(partition, any_node), []).append(partition)
    for node_id, partitions in sorted(by_node.items()):
        yield node_id, by_topic(partitions)
