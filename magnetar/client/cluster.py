"""A small blocking client: what the command line asks brokers through, ours or Apache Kafka's.

Owns connections, versions and where a request goes (any broker, every broker, the coordinator of
an id, the leader of a partition). Not here: what the answers mean, and retries, but for a
coordinator that is not there yet. Whatever goes wrong is a `ClientError` in words for a person.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Self, TypeVar

from magnetar.config.listeners import parse_address
from magnetar.config.load import ConfigError
from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.header import RequestHeader, ResponseHeader
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 10.0
CLIENT_ID = "magnetar-cli"

#: No answer to what is asked here is larger; a peer that announces more speaks something else.
RESPONSE_BYTES_MAX = 256 << 20
_COORDINATES_GROUPS = 0
_COORDINATES_TRANSACTIONS = 1
_COORDINATED = ("group", "transactional id")
_COORDINATOR_KEYS_SINCE = 4
_RETRY_DELAY_S = 0.1
_SIZE = Struct(">i")

R = TypeVar("R", bound=Message)
T = TypeVar("T")
Address = tuple[str, int]
TopicPartition = tuple[str, int]

#: What passes by itself: a coordinator that loads, moves, or whose topic is just being created.
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class ClientError(Exception):
    """What stopped a command, in words for its user."""


class Unreachable(ClientError):
    """A broker cannot be connected to, or its answer did not come. It may be back later."""


class Refused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        said = f" ({message.rstrip('.')})" if message else ""
        hint = _HINTS.get(self.code, "")
        super().__init__(f"{what}: {self.code.name}{said}{hint and f'. {hint}'}")


#: What a person may do about a refusal.
_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`magnetar topics list` shows what there is.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists takes it as it is.",
    ErrorCode.INVALID_CONFIG: "`magnetar configs list` shows names and values.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "The broker's ACLs do not allow it.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The broker's ACLs do not allow it.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "The broker's ACLs do not allow it.",
}


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise Refused unless `code` is NONE; `message` is what the broker says of it."""
    if code != ErrorCode.NONE:
        raise Refused(code, what, message)


class Connection:
    """One connection to one broker; a call is a request and its answer."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect and learn the broker's versions. ClientError: nobody there who speaks Kafka."""
        self.address = address
        #: Whether every request so far got its answer: else the next answer would be an older's.
        self.is_usable = True
        self._name = f"{address[0]}:{address[1]}"
        self._timeout_s = timeout_s
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise Unreachable(
                f"cannot reach a broker at {self._name}: {error.strerror or error}. "
                "Is it running? --bootstrap names another one."
            ) from None
        # The version of this request is 0: the one that every broker can answer.
        try:
            answer = self._ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        except ClientError:
            self.close()
            raise
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in answer.api_keys
        }

    def serves(self, request_class: type[Message]) -> bool:
        """Return whether the broker speaks any version of this that we speak."""
        lowest, highest = self._versions.get(request_class.api_key, (0, -1))
        return max(lowest, request_class.min_version) <= min(highest, request_class.max_version)

    def version_for(
        self, request_class: type[Message], *, at_least: int = 0, at_most: int | None = None
    ) -> int:
        """Return the highest version that both sides speak. ClientError: none, or too low."""
        key = request_class.api_key
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, request_class.max_version)
        if at_most is not None:
            version = min(version, at_most)
        if version < max(lowest, request_class.min_version, at_least):
            wanted = f"{API_NAMES[key]} version {at_least}" if at_least else API_NAMES[key]
            raise ClientError(f"the broker at {self._name} does not serve {wanted}.")
        return version

    def call(
        self,
        request: Message,
        response_class: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        longer_s: float = 0.0,
    ) -> R:
        """Return the answer to `request`, sent in the highest version that both sides speak.

        `longer_s` is waited beyond the timeout, for what others may hold up.
        """
        version = self.version_for(type(request), at_least=at_least, at_most=at_most)
        return self._ask(request, response_class, version, longer_s)

    def close(self) -> None:
        self._socket.close()

    def _ask(
        self, request: Message, response_class: type[R], version: int, longer_s: float = 0.0
    ) -> R:
        deadline = time.monotonic() + self._timeout_s + longer_s
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=CLIENT_ID,
        )
        try:
            body = header.encode(request.header_version(version)) + request.encode(version)
        except WireError as error:
            raise ClientError(f"cannot ask the broker that: {error}") from None
        self.is_usable = False
        try:
            frame = self._exchange(body, deadline)
            answered, start = ResponseHeader.decode_from(
                frame, response_class.header_version(version)
            )
            if answered.correlation_id != self._correlation_id:
                raise WireError(f"an answer to request {answered.correlation_id}")
            decoded = response_class.decode(memoryview(frame)[start:], version)
            self.is_usable = True
            return decoded
        except TimeoutError:
            raise Unreachable(
                f"{self._name} did not answer {API_NAMES[request.api_key]} within "
                f"{self._timeout_s:g} s. --timeout waits longer."
            ) from None
        except OSError as error:
            raise Unreachable(f"{self._name}: {error.strerror or error}") from None
        except WireError as error:
            raise ClientError(f"{self._name} does not speak Kafka's protocol: {error}") from None

    def _exchange(self, body: bytes, deadline: float) -> bytes:
        """Send a request, return the frame that comes next. TimeoutError, OSError, WireError."""
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size_bytes,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        if not 4 <= size_bytes <= RESPONSE_BYTES_MAX:
            raise WireError(f"an answer of {size_bytes} bytes")
        return self._receive(size_bytes, deadline)

    def _receive(self, size_bytes: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            more = self._socket.recv(min(size_bytes - len(received), 1 << 20))
            if not more:
                raise ConnectionError(
                    "the connection was closed without an answer. "
                    "Is it a listener without TLS and SASL?"
                )
            received += more
        return bytes(received)


class Client:
    """The brokers of a cluster, connected to when they are needed. A context manager."""

    def __init__(
        self, bootstrap_servers: str = DEFAULT_BOOTSTRAP, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Connect to the first of `host:port[,host:port...]` that answers."""
        self._timeout_s = timeout_s
        self._addresses: dict[int, Address] = {}
        self._connections: dict[int, Connection] = {}
        self._bootstrap = self._connect_any(parse_addresses(bootstrap_servers))
        try:
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
    def node_ids(self) -> list[int]:
        """Every broker of the cluster."""
        return sorted(self._addresses)

    def call(
        self,
        request: Message,
        response_class: type[R],
        *,
        node_id: int | None = None,
        at_least: int = 0,
        at_most: int | None = None,
        longer_s: float = 0.0,
    ) -> R:
        """Return the answer of broker `node_id` (None: any) in a version within these bounds."""
        connection = self._any() if node_id is None else self._connection(node_id)
        return connection.call(
            request, response_class, at_least=at_least, at_most=at_most, longer_s=longer_s
        )

    def serves(self, request_class: type[Message]) -> bool:
        """Return whether the cluster serves this request in a version that we speak."""
        return self._bootstrap.serves(request_class)

    def version_for(self, request_class: type[Message]) -> int:
        """Return the highest version of an API that the first broker and this client speak."""
        return self._bootstrap.version_for(request_class)

    def coordinators(self, transactional_ids: Iterable[str]) -> dict[int, list[str]]:
        """Return the ids by the broker that coordinates them."""
        return self._coordinators(transactional_ids, _COORDINATES_TRANSACTIONS)

    def group_coordinators(self, group_ids: Iterable[str]) -> dict[int, list[str]]:
        """Return the groups by the broker that coordinates them."""
        return self._coordinators(group_ids, _COORDINATES_GROUPS)

    def topics(self, names: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Return every partition of the topics (None: of all) with its leader's node id.

        Refused for a topic that does not exist; partitions without a leader are left out.
        """
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = self._any().call(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False), MetadataResponse
        )
        self._learn(answer)
        leaders = {}
        for topic in answer.topics:
            check(topic.error_code, f"topic {topic.name}")
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    leaders[topic.name or "", partition.partition_index] = partition.leader_id
        return leaders

    def until_settled(self, ask: Callable[[], T], code_of: Callable[[T], int]) -> T:
        """Return what `ask` answers once its code is none of those that pass by themselves."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = ask()
            if code_of(answer) not in PASSING or time.monotonic() > deadline:
                return answer
            time.sleep(_RETRY_DELAY_S)

    def _coordinators(self, ids: Iterable[str], kind: int) -> dict[int, list[str]]:
        by_node: dict[int, list[str]] = {}
        keys = list(dict.fromkeys(ids))
        if len(self._addresses) == 1 and keys:
            # One broker coordinates everything; it is asked once, to make its topic exist.
            return {self._coordinator_of(keys[0], kind): keys}
        for key in keys:
            by_node.setdefault(self._coordinator_of(key, kind), []).append(key)
        return by_node

    def _coordinator_of(self, key: str, kind: int) -> int:
        version = self._bootstrap.version_for(FindCoordinatorRequest)
        request = FindCoordinatorRequest(key_type=kind)
        if version >= _COORDINATOR_KEYS_SINCE:
            request.coordinator_keys = [key]
        else:
            request.key = key

        def ask() -> tuple[int, int]:
            answer = self._any().call(request, FindCoordinatorResponse)
            if version < _COORDINATOR_KEYS_SINCE:
                return answer.error_code, answer.node_id
            return answer.coordinators[0].error_code, answer.coordinators[0].node_id

        code, node_id = self.until_settled(ask, lambda answer: answer[0])
        check(code, f"the coordinator of {_COORDINATED[kind]} {key!r}")
        return node_id

    def _connect_any(self, addresses: list[Address]) -> Connection:
        failures = []
        for address in addresses:
            try:
                return Connection(address, self._timeout_s)
            except ClientError as failure:
                failures.append(failure)
        raise failures[0]

    def _any(self) -> Connection:
        """Return the first connection, made anew where an interruption left it without answer."""
        if not self._bootstrap.is_usable:
            self._bootstrap.close()
            self._bootstrap = Connection(self._bootstrap.address, self._timeout_s)
        return self._bootstrap

    def _connection(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is not None and not connection.is_usable:
            connection.close()
            connection = None
        if connection is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise ClientError(f"broker {node_id} is not among {self.node_ids}.")
            connection = self._connections[node_id] = Connection(address, self._timeout_s)
        return connection

    def _learn(self, answer: MetadataResponse) -> None:
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}


def parse_addresses(text: str) -> list[Address]:
    """Return the addresses of `host:port[,host:port...]`. ClientError: it is not that."""
    try:
        addresses = [parse_address(part.strip(), "bootstrap servers") for part in text.split(",")]
    except ConfigError as mistake:
        raise ClientError(str(mistake)) from None
    return [(host or "127.0.0.1", port) for host, port in addresses]
