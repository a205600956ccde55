"""Producers, honest and otherwise, writing to one partition; and what it should know of them.

`Traffic` performs one operation after another and keeps what was appended. `Expected` derives from
those batches, naively and from scratch, what a partition must say of them: the oracle of the
property tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from logstore.segments.aborted_index import AbortedTransaction
from tests.logstore.partitions import batch_of
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.records import BatchHeader, ControlType, SimpleRecord, parse_marker

#: Everything that `Traffic.perform` knows.
OPERATIONS = (
    "plain",
    "idempotent",
    "transactional",
    "duplicate",
    "gap",
    "zombie",
    "commit",
    "abort",
    "fencing abort",
    "zombie coordinator",
    "new epoch",
    "offsets",
)


@dataclass
class _Client:
    """What a producer believes of itself."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    sent: list[tuple[int, int, bool]] = field(default_factory=list)  # sequence, count, is_txn


class Traffic:
    """A few producers of one partition. Set `log` again after a restart, and call `recovered`."""

    def __init__(self, log: PartitionLog, producers: int = 3) -> None:
        self.log = log
        self.now_ms = 1_000
        #: Every batch appended, as placed, with its end offset.
        self.appended: list[bytes] = []
        self._clients = [_Client(producer_id) for producer_id in range(producers)]
        self._values = 0

    def perform(self, operation: str, producer: int, count: int) -> None:
        """Do one of OPERATIONS. Refusals that must be are asserted."""
        self.now_ms += 1
        client = self._clients[producer % len(self._clients)]
        if operation in ("commit", "abort", "fencing abort"):
            self._end(client, operation)
        elif operation in ("gap", "zombie", "zombie coordinator"):
            self._misbehave(client, operation, count)
        else:
            self._write(client, operation, count)

    def _write(self, client: _Client, operation: str, count: int) -> None:
        is_open = self.log.transactions.is_open(client.producer_id)
        match operation:
            case "plain":
                self._append(_Client(-1, -1, -1), count, transactional=False)
            case "idempotent" if not is_open:
                self._produce(client, count, transactional=False)
            case "transactional" if self._has_older_open(client):
                self._refused(client, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, transactional=True)
            case "transactional":
                self._produce(client, count, transactional=True)
            case "duplicate" if client.sent:
                self._repeat(client, count)
            case "new epoch" if not is_open:
                self._restart(client)
                self._produce(client, count, transactional=False)
            case "offsets" if client.producer_id in self.log.producers:
                self._append_offsets(client)

    def _has_older_open(self, client: _Client) -> bool:
        """Whether the client has begun a new epoch while data of the one before was open."""
        transaction = self.log.transactions.open_transaction(client.producer_id)
        return transaction is not None and transaction.producer_epoch < client.epoch

    def _misbehave(self, client: _Client, operation: str, count: int) -> None:
        is_open = self.log.transactions.is_open(client.producer_id)
        state = self.log.producers.get(client.producer_id)
        if operation == "gap" and client.sent:
            ahead = _Client(client.producer_id, client.epoch, client.sequence + 1 + count)
            self._refused(ahead, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, is_open)
        elif operation == "zombie" and state is not None and client.epoch > 0:
            behind = _Client(client.producer_id, state.producer_epoch - 1, client.sequence)
            if behind.epoch >= 0:
                self._refused(behind, ErrorCode.INVALID_PRODUCER_EPOCH, is_open)
        elif operation == "zombie coordinator":
            self._refused_marker(client)

    def silence(self, duration_ms: int) -> list[int]:
        """Let this time pass without writes; return the producers that the partition forgets."""
        self.now_ms += duration_ms
        forgotten = self.log.expire_producers([*self.log.producers], self.now_ms)
        for client in self._clients:
            if client.producer_id in forgotten:
                client.sent.clear()  # A retry would not be recognised; the sequence goes on.
        return forgotten

    def recovered(self, kept: int) -> None:
        """The log came back with its first `kept` batches: the producers begin new epochs."""
        del self.appended[kept:]
        for client in self._clients:
            self._restart(client)

    def _restart(self, client: _Client) -> None:
        client.epoch += 1
        client.sequence = 0
        client.sent.clear()

    def _produce(self, client: _Client, count: int, *, transactional: bool) -> None:
        state = self.log.producers.get(client.producer_id)
        if state is not None and not state.batches and client.sequence > 0:
            # Forgotten, then known again by a marker alone: it must begin at 0, as in Kafka.
            self._restart(client)
        self._append(client, count, transactional=transactional)
        client.sent.append((client.sequence, count, transactional))
        client.sequence += count

    def _batch(self, client: _Client, count: int, *, transactional: bool) -> bytearray:
        self._values += 1
        return batch_of(
            *[b"%d.%d" % (self._values, index) for index in range(count)],
            timestamp=self.now_ms,
            producer_id=client.producer_id,
            epoch=client.epoch,
            sequence=client.sequence,
            transactional=transactional,
        )

    def _append(self, client: _Client, count: int, *, transactional: bool) -> None:
        batch = self._batch(client, count, transactional=transactional)
        end_offset = self.log.log_end_offset
        self.appended.append(b"")  # Whatever happens from here on, it may be in the log.
        result = self.log.append(self.log.check(batch, self.now_ms))
        assert (result.base_offset, result.is_duplicate) == (end_offset, False)
        assert result.end_offset == end_offset + count
        self.appended[-1] = bytes(batch)

    def _repeat(self, client: _Client, back: int) -> None:
        """Send one of the last five batches again: success, with its offset, and no new bytes."""
        sequence, count, transactional = client.sent[-(1 + back % min(5, len(client.sent)))]
        again = _Client(client.producer_id, client.epoch, sequence)
        end_offset = self.log.log_end_offset
        result = self.log.append(
            self.log.check(self._batch(again, count, transactional=transactional), self.now_ms)
        )
        assert result.is_duplicate and result.last_offset == result.base_offset + count - 1
        assert self.log.log_end_offset == end_offset
        assert any(
            header.base_offset == result.base_offset and header.base_sequence == sequence
            for header in map(BatchHeader.parse, self.appended)
            if header.producer_id == client.producer_id
        )

    def _refused(self, client: _Client, code: ErrorCode, transactional: bool) -> None:
        before = repr(self.log.state)
        try:
            self.log.append(
                self.log.check(self._batch(client, 1, transactional=transactional), self.now_ms)
            )
        except KafkaError as error:
            assert error.code is code, error
        else:
            raise AssertionError(f"{code.name} was expected")
        assert repr(self.log.state) == before

    def _refused_marker(self, client: _Client) -> None:
        state = self.log.producers.get(client.producer_id)
        if state is None or state.coordinator_epoch <= 0:
            return
        before = repr(self.log.state)
        epoch = max(client.epoch, state.producer_epoch)
        zombie = TransactionMarker(
            client.producer_id, epoch, state.coordinator_epoch - 1, commit=True
        )
        try:
            self.log.append_marker(zombie, self.now_ms)
        except KafkaError as error:
            assert error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        else:
            raise AssertionError("a zombie coordinator's marker was taken")
        assert repr(self.log.state) == before

    def _end(self, client: _Client, how: str) -> None:
        if how == "fencing abort":
            self._restart(client)
        self.appended.append(b"")
        marker = TransactionMarker(client.producer_id, client.epoch, 1, commit=how == "commit")
        result = self.log.append_marker(marker, self.now_ms)
        self.appended[-1] = self._stored(result.base_offset)

    def _append_offsets(self, client: _Client) -> None:
        """A coordinator's transactional records, which carry no sequence."""
        state = self.log.producers[client.producer_id]
        is_behind = self._has_older_open(client)
        epoch = state.producer_epoch if is_behind else max(client.epoch, state.producer_epoch)
        self.appended.append(b"")
        result = self.log.append_records(
            [SimpleRecord(b"group", b"1", self.now_ms)],
            producer_id=client.producer_id,
            producer_epoch=epoch,
            is_transactional=True,
        )
        self.appended[-1] = self._stored(result.base_offset)
        # The client's own sequence is not where it was; it would not write to the same partition.
        self._restart(client)

    def _stored(self, offset: int) -> bytes:
        _, batch = next(iter(self.log.ledger.batches.iterate(offset)))
        return bytes(batch)


class Expected:
    """What must be known of a prefix of a partition's batches, worked out the slow way."""

    def __init__(self, batches: list[bytes]) -> None:
        self.headers = [BatchHeader.parse(batch) for batch in batches]
        self.commits = {
            header.base_offset: parse_marker(batch).control_type is ControlType.COMMIT
            for header, batch in zip(self.headers, batches, strict=True)
            if header.is_control
        }
        self.end_offset = self.headers[-1].next_offset if batches else 0

    def last_stable_offset(self, durable_end_offset: int) -> int:
        """The smallest first offset of a transaction without a durable marker, or the end."""
        open_since: dict[int, int] = {}
        for header in self.headers:
            if header.base_offset >= durable_end_offset:
                break
            if header.is_control:
                open_since.pop(header.producer_id, None)
            elif header.is_transactional:
                open_since.setdefault(header.producer_id, header.base_offset)
        return min(open_since.values(), default=durable_end_offset)

    def aborted(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with anything in the range, by their markers' offsets."""
        found = []
        open_since: dict[int, int] = {}
        for header in self.headers:
            if not header.is_transactional:
                continue
            if not header.is_control:
                open_since.setdefault(header.producer_id, header.base_offset)
                continue
            since = open_since.pop(header.producer_id, None)
            if since is None or self.commits[header.base_offset]:
                continue
            if since < end_offset and header.base_offset >= first_offset:
                found.append(AbortedTransaction(header.producer_id, since))
        return found

    def remembered(self, producer_id: int) -> list[tuple[int, int]]:
        """(base sequence, base offset) of the producer's last five batches of its last epoch."""
        last_epoch = max(
            (header.producer_epoch for header in self.headers if header.producer_id == producer_id),
            default=-1,
        )
        return [
            (header.base_sequence, header.base_offset)
            for header in self.headers
            if header.producer_id == producer_id
            and header.producer_epoch == last_epoch
            and not header.is_control
        ][-5:]
