"""Requests as bytes over a socket, for what client libraries hide: versions, retries, wrong epochs.

kafka-python's message classes encode and decode; nothing here repeats, retries or remembers.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kafka.record.default_records import DefaultRecordBatchBuilder

from compat_tests.brokers import WORKERS
from compat_tests.client import TIMEOUT_S, TRANSACTION_TIMEOUT_MS

UNSTABLE_OFFSET_COMMIT = 88
#: NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR, as messages are shown.
_ELSEWHERE = re.compile(r"error_code=(<ErrorCode\.\w+: )?(6|16)\b")
_TXN_OFFSET_COMMIT = 28
#: Of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.
_OF_TRANSACTIONS = {24, 25, 26}


class Closed(Exception):
    """The broker closed the connection."""


class Appended(NamedTuple):
    """One partition's answer to a Produce."""

    error_code: int
    base_offset: int
    log_start_offset: int


class Ended(NamedTuple):
    error_code: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class Identity:
    """A producer as the broker knows it."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int


class Member(NamedTuple):
    """The member that commits offsets. The default stands for a client that is no member."""

    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None


NO_MEMBER = Member()


def batch(
    values: Sequence[bytes],
    identity: Identity | None = None,
    sequence: int = -1,
    *,
    timestamp_ms: int | None = None,
) -> bytes:
    """Return one record batch, uncompressed; transactional if the identity has an id for it."""
    who = identity or Identity(None, -1, -1)
    now = timestamp_ms if timestamp_ms is not None else int(time.time() * 1000)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=who.transactional_id is not None,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for position, value in enumerate(values):
        builder.append(position, now, None, value, [])
    return bytes(builder.build())


class Connection:
    """One TCP connection; a call is a request and its answer.

    Where the broker is a cluster of WORKERS nodes, a call that the wrong node refuses goes on to
    the next one, and so does the connection.
    """

    #: Sent again for a minute while a coordinator loads or its topic is created: LOADING,
    #: NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT.
    not_yet: ClassVar[Set[int]] = {14, 15, 16, 51}
    client_id = "raw"

    def __init__(
        self, bootstrap: str, introduce: Callable[[Connection], None] | None = None
    ) -> None:
        """`introduce` is called with each connection that is made, first of all: to log in."""
        host, port = bootstrap.rsplit(":", 1)
        self._nodes = [(host, int(port) + number) for number in range(WORKERS)]
        self._introduce = introduce
        #: The ports of coordinators by what they coordinate. They stay where they are.
        self._coordinators: dict[tuple[str, int], int] = {}
        self._correlation_id = 0
        self._connect()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def finish(self) -> None:
        """Say that nothing more will be sent; the peer may have hung up already."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, request: Any) -> None:
        """Send a versioned request without waiting for its answer."""
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=self.client_id)
        self.send_bytes(bytes(request.encode(header=True, framed=True)))

    def receive_frame(self) -> bytes:
        """Return the next frame without its length. Raises Closed at the end of the stream."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def call(self, request: Any, response: Any) -> Any:
        if len(self._nodes) > 1:
            self._go_to_node_of(request)

        def ask() -> Any:
            self.send(request)
            frame = self.receive_frame()
            return response.decode(frame, version=request.API_VERSION, header=True)

        return self.routed(ask)

    def routed(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` hears: of each node in turn, while one says that it is another's."""
        answer = ask()
        for _ in range(len(self._nodes) - 1):
            if not _ELSEWHERE.search(str(answer)):
                break
            self._nodes.append(self._nodes.pop(0))
            self._socket.close()
            self._connect()
            answer = ask()
        return answer

    def _connect(self) -> None:
        while True:
            try:
                self._socket = socket.create_connection(self._nodes[0], timeout=TIMEOUT_S)
                break
            except ConnectionRefusedError:
                if len(self._nodes) == 1:
                    raise
                # Of a broker with fewer nodes, such as the reference.
                del self._nodes[0]
        if self._introduce is not None:
            self._introduce(self)

    def call_bytes(
        self, api_key: int, version: int, body: bytes, *, is_flexible: bool = True
    ) -> bytes:
        """Send a request; return its answer, from the correlation id on."""
        self._correlation_id += 1
        names = api_key, version, self._correlation_id, len(self.client_id)
        header = struct.pack(">hhih", *names) + self.client_id.encode()
        # No tags.
        header += b"\0" * is_flexible
        self.send_bytes(struct.pack(">i", len(header) + len(body)) + header + body)
        return self.receive_frame()

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(size - len(parts))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed(f"after {len(parts)} of {size} bytes")
            parts += part
        return bytes(parts)

    # The requests themselves

    def init_producer_id(
        self,
        transactional_id: str | None,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        version: int = 4,
        known: Identity | None = None,
    ) -> tuple[int, Identity]:
        """Return (error code, identity); waits while the coordinator is not there yet."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            if transactional_id is not None:
                self._find_coordinator(transactional_id)
            request = InitProducerIdRequest[version](
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=known.producer_id if known else -1,
                producer_epoch=known.producer_epoch if known else -1,
            )
            answer = self.call(request, InitProducerIdResponse)
            if answer.error_code not in self.not_yet or time.monotonic() > deadline:
                found = Identity(transactional_id, answer.producer_id, answer.producer_epoch)
                return answer.error_code, found
            time.sleep(0.02)

    def producer(self, transactional_id: str | None, **arguments: Any) -> Identity:
        """Return a fresh identity; anything but success is an error of the test."""
        code, identity = self.init_producer_id(transactional_id, **arguments)
        assert code == 0, code
        return identity

    def add_partitions(
        self, identity: Identity, topic: str, partitions: Sequence[int] = (0,), version: int = 3
    ) -> list[int]:
        """Return the error codes; waits while the last transaction is still ending."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            request = AddPartitionsToTxnRequest[version](
                v3_and_below_transactional_id=identity.transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.producer_epoch,
                v3_and_below_topics=[(topic, list(partitions))],
            )
            answer = self.call(request, AddPartitionsToTxnResponse)
            (results,) = answer.results_by_topic_v3_and_below
            codes = [each.partition_error_code for each in results.results_by_partition]
            if not self.not_yet & set(codes) or time.monotonic() > deadline:
                return codes
            time.sleep(0.02)

    def produce(
        self,
        topic: str,
        records: bytes,
        *,
        transactional_id: str | None = None,
        partition: int = 0,
        acks: int = -1,
        version: int = 11,
    ) -> Appended:
        if len(self._nodes) > 1:
            self._go_to_leader(topic, partition)
        request = ProduceRequest[version](
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[(topic, [(partition, records)])],
        )
        answer = self.call(request, ProduceResponse)
        (appended,) = answer.responses[0].partition_responses
        return Appended(appended.error_code, appended.base_offset, appended.log_start_offset)

    def write_in_transaction(
        self, identity: Identity, topic: str, *values: bytes, sequence: int = 0
    ) -> None:
        """Add partition 0 to the transaction, of version 1, and write one batch there."""
        assert self.add_partitions(identity, topic) == [0]
        records = batch(values, identity, sequence)
        answer = self.produce(topic, records, transactional_id=identity.transactional_id)
        assert answer.error_code == 0

    def end(self, identity: Identity, *, commit: bool, version: int = 3) -> Ended:
        """Return EndTxn's answer; waits while an earlier one is still ending."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            request = EndTxnRequest[version](
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                committed=commit,
            )
            answer = self.call(request, EndTxnResponse)
            if answer.error_code not in self.not_yet or time.monotonic() > deadline:
                return Ended(answer.error_code, answer.producer_id, answer.producer_epoch)
            time.sleep(0.02)

    def add_offsets(self, identity: Identity, group: str) -> int:
        """Return the error code of AddOffsetsToTxn; waits for the group's coordinator."""
        self._find_coordinator(group, key_type=0)
        request = AddOffsetsToTxnRequest[3](
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group,
        )
        code: int = self.call(request, AddOffsetsToTxnResponse).error_code
        return code

    def txn_offset_commit(
        self,
        identity: Identity,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int,
        member: Member = NO_MEMBER,
    ) -> int:
        self._find_coordinator(group, key_type=0)
        partition = (0, offset, -1, "") if version >= 2 else (0, offset, "")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            request = TxnOffsetCommitRequest[version](
                transactional_id=identity.transactional_id,
                group_id=group,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                generation_id=member.generation_id,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                topics=[(topic, [partition])],
            )
            answer = self.call(request, TxnOffsetCommitResponse)
            code: int = answer.topics[0].partitions[0].error_code
            if code not in self.not_yet or time.monotonic() > deadline:
                return code
            time.sleep(0.02)

    def committed_offset(self, group: str, topic: str, *, require_stable: bool) -> tuple[int, int]:
        """Return (error code, offset or -1) from OffsetFetch v7; waits for the coordinator."""
        self._find_coordinator(group, key_type=0)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            request = OffsetFetchRequest[7](
                group_id=group, topics=[(topic, [0])], require_stable=require_stable
            )
            answer = self.call(request, OffsetFetchResponse)
            if answer.error_code not in self.not_yet or time.monotonic() > deadline:
                (found,) = answer.topics[0].partitions
                return answer.error_code or found.error_code, found.committed_offset
            time.sleep(0.02)

    def settled_offset(self, group: str, topic: str) -> tuple[int, int]:
        """As `committed_offset`, once no transaction holds it back: Kafka answers EndTxn before."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.committed_offset(group, topic, require_stable=True)
            if answer[0] != UNSTABLE_OFFSET_COMMIT or time.monotonic() > deadline:
                return answer
            time.sleep(0.02)

    def list_offset(
        self,
        topic: str,
        timestamp_ms: int,
        *,
        partition: int = 0,
        isolation: int = 0,
        version: int = 5,
    ) -> tuple[int, int, int]:
        """Return (error code, timestamp, offset). -1 asks for the latest, -2 for the earliest."""
        request = ListOffsetsRequest[version](
            replica_id=-1,
            isolation_level=isolation,
            topics=[(topic, [(partition, -1, timestamp_ms)])],
        )
        answer = self.call(request, ListOffsetsResponse)
        (found,) = answer.topics[0].partitions
        return found.error_code, found.timestamp, found.offset

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        isolation: int = 0,
        max_wait_ms: int = 0,
        leader_epoch: int = -1,
        max_bytes: int = 1 << 20,
    ) -> Any:
        """Return the one partition of a Fetch v11 outside any session."""
        request = FetchRequest[11](
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[(topic, [(0, leader_epoch, offset, -1, max_bytes)])],
            forgotten_topics_data=[],
            rack_id="",
        )
        answer = self.call(request, FetchResponse)
        return answer.responses[0].partitions[0]

    def serves(self, api_key: int) -> bool:
        """Return whether ApiVersions advertises the key."""
        answer = self.call(ApiVersionsRequest[0](), ApiVersionsResponse)
        return any(each.api_key == api_key for each in answer.api_keys)

    def coordinator_address(self, transactional_id: str) -> str:
        """Return where the coordinator of a transactional id is."""
        request = FindCoordinatorRequest[2](key=transactional_id, key_type=1)
        found = self.call(request, FindCoordinatorResponse)
        return f"{found.host}:{found.port}"

    def go_to_coordinator(self, key: str, key_type: int = 1) -> None:
        """Go on over a connection to the coordinator of a transactional id, or (0) of a group."""
        port = self._coordinators.get((key, key_type))
        if port is None:
            port = self._coordinators[key, key_type] = self._find_coordinator(key, key_type).port
        self._go_to(port)

    def _go_to_node_of(self, request: Any) -> None:
        """Go where a request of a transaction belongs: tests lose, hold and repeat these."""
        if request.API_KEY in _OF_TRANSACTIONS:
            self.go_to_coordinator(_transactional_id(request))
        elif request.API_KEY == _TXN_OFFSET_COMMIT:
            self.go_to_coordinator(request.group_id, key_type=0)

    def _go_to_leader(self, topic: str, partition: int) -> None:
        asked = MetadataRequest[4](topics=[(topic,)], allow_auto_topic_creation=False)
        found = self.call(asked, MetadataResponse)
        leaders = {each.partition_index: each.leader_id for each in found.topics[0].partitions}
        ports = {each.node_id: each.port for each in found.brokers}
        if (leader := leaders.get(partition)) in ports:
            self._go_to(ports[leader])

    def _go_to(self, port: int) -> None:
        if port != self._nodes[0][1] and port in (each for _, each in self._nodes):
            self._nodes.sort(key=lambda node: node[1] != port)
            self._socket.close()
            self._connect()

    def _find_coordinator(self, key: str, key_type: int = 1) -> Any:
        """Return the coordinator of a transactional id, or (type 0) a group, once it is there."""
        deadline = time.monotonic() + TIMEOUT_S
        request = FindCoordinatorRequest[2](key=key, key_type=key_type)
        while (found := self.call(request, FindCoordinatorResponse)).error_code in self.not_yet:
            assert time.monotonic() < deadline, f"no coordinator for {key}"
            time.sleep(0.02)
        return found


def _transactional_id(request: Any) -> str:
    is_add = request.API_KEY == AddPartitionsToTxnRequest.API_KEY
    found: str = request.v3_and_below_transactional_id if is_add else request.transactional_id
    return found


def unique(base: str) -> str:
    return f"{base}-{uuid.uuid4().hex[:8]}"
