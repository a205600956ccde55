"""Every request, in every version, by every state and by who asks: one table of what is answered.

Rows are states, columns who asks; `-` marks what cannot be. The names:

    ok         success                            wait     success when due markers are durable
    state      INVALID_TXN_STATE                  abort!   TRANSACTION_ABORTABLE
    fenced     PRODUCER_FENCED                    epoch    INVALID_PRODUCER_EPOCH
    mapping    INVALID_PRODUCER_ID_MAPPING        busy     CONCURRENT_TRANSACTIONS

    current    the producer that the coordinator holds: id 1000, epoch 5
    last       what that was bumped from by an end of version 2, a timeout or at its wish: epoch 4
    older      epoch 3            ahead    epoch 6            other    producer id 999
    next       the id that due markers will rotate to: 2000, epoch 0 (epochs used up)
    rotated    what the current producer was rotated from: id 900, epoch 32766

`ongoing` holds the partition that is asked for, `ongoing*` does not; `voted` is a child whose
parent is idle. Observed on Apache Kafka 4.3.1
wherever it can be seen from outside; compat_tests/test_transaction_version_2.py asks both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator.transactions.add_partitions import add_partitions, check_holds, refusal_of_data
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import (
    PREPARED,
    UNFINISHED,
    ProducerIdentity,
    State,
    TopicPartition,
    TransactionMetadata,
)
from magnetar.apis.transaction_versions import (
    ADD_OFFSETS_FENCED_SINCE,
    ADD_PARTITIONS_FENCED_SINCE,
    END_TXN_BUMPS_SINCE,
    END_TXN_FENCED_SINCE,
    INIT_PRODUCER_ID_FENCED_SINCE,
    PRODUCE_ABORTABLE_SINCE,
    PRODUCE_ADDS_SINCE,
    TXN_OFFSET_COMMIT_ABORTABLE_SINCE,
    TXN_OFFSET_COMMIT_ADDS_SINCE,
    code_for_version,
)
from wire.error_code import ErrorCode
from wire.errors import KafkaError

TABLE = """
AddPartitionsToTxn v0-1, AddOffsetsToTxn v0-1, Produce v12-13, TxnOffsetCommit v5
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            ok       epoch    epoch    epoch    mapping  -        mapping
ongoing          ok       epoch    epoch    epoch    mapping  -        mapping
ongoing*         ok       epoch    epoch    epoch    mapping  -        mapping
prepare commit   busy     epoch    epoch    epoch    mapping  busy     -
prepare abort    busy     epoch    epoch    epoch    mapping  busy     -
voted            busy     epoch    epoch    epoch    mapping  busy     -
complete commit  ok       epoch    epoch    epoch    mapping  -        mapping
complete abort   ok       epoch    epoch    epoch    mapping  -        mapping

AddPartitionsToTxn v2-5, AddOffsetsToTxn v2-4
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            ok       fenced   fenced   fenced   mapping  -        mapping
ongoing          ok       fenced   fenced   fenced   mapping  -        mapping
ongoing*         ok       fenced   fenced   fenced   mapping  -        mapping
prepare commit   busy     fenced   fenced   fenced   mapping  busy     -
prepare abort    busy     fenced   fenced   fenced   mapping  busy     -
voted            busy     fenced   fenced   fenced   mapping  busy     -
complete commit  ok       fenced   fenced   fenced   mapping  -        mapping
complete abort   ok       fenced   fenced   fenced   mapping  -        mapping

Produce v3-10, TxnOffsetCommit v0-3
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    epoch    epoch    epoch    mapping  -        mapping
ongoing          ok       epoch    epoch    epoch    mapping  -        mapping
ongoing*         state    epoch    epoch    epoch    mapping  -        mapping
prepare commit   state    epoch    epoch    epoch    mapping  mapping  -
prepare abort    state    epoch    epoch    epoch    mapping  mapping  -
voted            state    epoch    epoch    epoch    mapping  mapping  -
complete commit  state    epoch    epoch    epoch    mapping  -        mapping
complete abort   state    epoch    epoch    epoch    mapping  -        mapping

Produce v11, TxnOffsetCommit v4
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            abort!   epoch    epoch    epoch    mapping  -        mapping
ongoing          ok       epoch    epoch    epoch    mapping  -        mapping
ongoing*         abort!   epoch    epoch    epoch    mapping  -        mapping
prepare commit   abort!   epoch    epoch    epoch    mapping  mapping  -
prepare abort    abort!   epoch    epoch    epoch    mapping  mapping  -
voted            abort!   epoch    epoch    epoch    mapping  mapping  -
complete commit  abort!   epoch    epoch    epoch    mapping  -        mapping
complete abort   abort!   epoch    epoch    epoch    mapping  -        mapping

EndTxn commit v0-1
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    epoch    epoch    epoch    mapping  -        mapping
ongoing          ok       epoch    epoch    epoch    mapping  -        mapping
ongoing*         ok       epoch    epoch    epoch    mapping  -        mapping
prepare commit   wait     epoch    epoch    epoch    mapping  busy     -
prepare abort    state    epoch    epoch    epoch    mapping  busy     -
voted            ok       epoch    epoch    epoch    mapping  busy     -
complete commit  ok       epoch    epoch    epoch    mapping  -        mapping
complete abort   state    epoch    epoch    epoch    mapping  -        mapping

EndTxn commit v2-4
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    fenced   fenced   fenced   mapping  -        mapping
ongoing          ok       fenced   fenced   fenced   mapping  -        mapping
ongoing*         ok       fenced   fenced   fenced   mapping  -        mapping
prepare commit   wait     fenced   fenced   fenced   mapping  busy     -
prepare abort    state    fenced   fenced   fenced   mapping  busy     -
voted            ok       fenced   fenced   fenced   mapping  busy     -
complete commit  ok       fenced   fenced   fenced   mapping  -        mapping
complete abort   state    fenced   fenced   fenced   mapping  -        mapping

EndTxn commit v5
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    fenced   fenced   fenced   mapping  -        mapping
ongoing          ok       fenced   fenced   fenced   mapping  -        mapping
ongoing*         ok       fenced   fenced   fenced   mapping  -        mapping
prepare commit   busy     wait     fenced   fenced   mapping  busy     -
prepare abort    busy     state    fenced   fenced   mapping  busy     -
voted            busy     ok       fenced   fenced   mapping  busy     -
complete commit  state    ok       fenced   fenced   mapping  -        ok
complete abort   state    state    fenced   fenced   mapping  -        state

EndTxn abort v0-1
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    epoch    epoch    epoch    mapping  -        mapping
ongoing          ok       epoch    epoch    epoch    mapping  -        mapping
ongoing*         ok       epoch    epoch    epoch    mapping  -        mapping
prepare commit   state    epoch    epoch    epoch    mapping  busy     -
prepare abort    wait     epoch    epoch    epoch    mapping  busy     -
voted            state    epoch    epoch    epoch    mapping  busy     -
complete commit  state    epoch    epoch    epoch    mapping  -        mapping
complete abort   ok       epoch    epoch    epoch    mapping  -        mapping

EndTxn abort v2-4
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            state    fenced   fenced   fenced   mapping  -        mapping
ongoing          ok       fenced   fenced   fenced   mapping  -        mapping
ongoing*         ok       fenced   fenced   fenced   mapping  -        mapping
prepare commit   state    fenced   fenced   fenced   mapping  busy     -
prepare abort    wait     fenced   fenced   fenced   mapping  busy     -
voted            state    fenced   fenced   fenced   mapping  busy     -
complete commit  state    fenced   fenced   fenced   mapping  -        mapping
complete abort   ok       fenced   fenced   fenced   mapping  -        mapping

EndTxn abort v5
                 current  last     older    ahead    other    next     rotated
unknown          mapping  mapping  mapping  mapping  mapping  -        mapping
empty            ok       fenced   fenced   fenced   mapping  -        mapping
ongoing          ok       fenced   fenced   fenced   mapping  -        mapping
ongoing*         ok       fenced   fenced   fenced   mapping  -        mapping
prepare commit   busy     state    fenced   fenced   mapping  busy     -
prepare abort    busy     wait     fenced   fenced   mapping  busy     -
voted            busy     state    fenced   fenced   mapping  busy     -
complete commit  ok       state    fenced   fenced   mapping  -        state
complete abort   ok       ok       fenced   fenced   mapping  -        ok

InitProducerId v0-5
                 anybody
unknown          ok
empty            ok
ongoing          ok
ongoing*         ok
prepare commit   busy
prepare abort    busy
voted            ok
complete commit  ok
complete abort   ok

InitProducerId naming itself v3
                 current  last     older    ahead    other    next     rotated
unknown          ok       ok       ok       ok       ok       -        ok
empty            ok       ok       epoch    epoch    epoch    -        ok
ongoing          ok       epoch    epoch    epoch    epoch    -        epoch
ongoing*         ok       epoch    epoch    epoch    epoch    -        epoch
prepare commit   busy     busy     epoch    epoch    epoch    busy     -
prepare abort    busy     busy     epoch    epoch    epoch    busy     -
voted            ok       epoch    epoch    epoch    epoch    ok       -
complete commit  ok       ok       epoch    epoch    epoch    -        ok
complete abort   ok       ok       epoch    epoch    epoch    -        ok

InitProducerId naming itself v4-5
                 current  last     older    ahead    other    next     rotated
unknown          ok       ok       ok       ok       ok       -        ok
empty            ok       ok       fenced   fenced   fenced   -        ok
ongoing          ok       fenced   fenced   fenced   fenced   -        fenced
ongoing*         ok       fenced   fenced   fenced   fenced   -        fenced
prepare commit   busy     busy     fenced   fenced   fenced   busy     -
prepare abort    busy     busy     fenced   fenced   fenced   busy     -
voted            ok       fenced   fenced   fenced   fenced   ok       -
complete commit  ok       ok       fenced   fenced   fenced   -        ok
complete abort   ok       ok       fenced   fenced   fenced   -        ok
"""

CODES = {
    "state": ErrorCode.INVALID_TXN_STATE,
    "abort!": ErrorCode.TRANSACTION_ABORTABLE,
    "fenced": ErrorCode.PRODUCER_FENCED,
    "epoch": ErrorCode.INVALID_PRODUCER_EPOCH,
    "mapping": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "busy": ErrorCode.CONCURRENT_TRANSACTIONS,
}
NAMES = {code: name for name, code in CODES.items()}
HELD, NOT_HELD = TopicPartition("a", 0), TopicPartition("b", 0)
NOW_MS = 50_000

WHO = {
    "current": ProducerIdentity(1000, 5),
    "last": ProducerIdentity(1000, 4),
    "older": ProducerIdentity(1000, 3),
    "ahead": ProducerIdentity(1000, 6),
    "other": ProducerIdentity(999, 5),
    "next": ProducerIdentity(2000, 0),
    "rotated": ProducerIdentity(900, 32766),
}
STATES = {
    "unknown": None,
    "empty": State.EMPTY,
    "ongoing": State.ONGOING,
    "ongoing*": State.ONGOING,
    "prepare commit": State.PREPARE_COMMIT,
    "prepare abort": State.PREPARE_ABORT,
    "voted": State.VOTED,
    "complete commit": State.COMPLETE_COMMIT,
    "complete abort": State.COMPLETE_ABORT,
}
#: Asks `txn` in that version as that identity; None: no identity is named.
Request = Callable[[TransactionMetadata | None, ProducerIdentity, TopicPartition, int], None]
MakeTxn = Callable[..., TransactionMetadata]


def _add(fenced_since: int) -> Request:
    def ask(
        txn: TransactionMetadata | None,
        identity: ProducerIdentity,
        partition: TopicPartition,
        version: int,
    ) -> None:
        try:
            _added(txn, identity, partition)
        except KafkaError as refusal:
            code = code_for_version(refusal.code, version, fenced_since=fenced_since)
            raise KafkaError(code, refusal.detail) from None

    return ask


def _added(
    txn: TransactionMetadata | None, identity: ProducerIdentity, partition: TopicPartition
) -> None:
    add_partitions(
        txn,
        identity,
        frozenset({partition}),
        coordinator_partition=7,
        now_ms=NOW_MS,
        transaction_version=1,
    )


def _data(abortable_since: int, adds_since: int) -> Request:
    def ask(
        txn: TransactionMetadata | None,
        identity: ProducerIdentity,
        partition: TopicPartition,
        version: int,
    ) -> None:
        if version < adds_since:
            is_known = version >= abortable_since
            check_holds(txn, *identity, partition, is_abortable_known=is_known)
            return
        try:
            _added(txn, identity, partition)
        except KafkaError as refusal:
            raise refusal_of_data(refusal) from None

    return ask


def _end(commit: bool) -> Request:
    def ask(
        txn: TransactionMetadata | None,
        identity: ProducerIdentity,
        _: TopicPartition,
        version: int,
    ) -> None:
        try:
            end_txn(
                txn,
                identity,
                commit=commit,
                transaction_version=2 if version >= END_TXN_BUMPS_SINCE else 1,
                coordinator_partition=7,
                fresh_producer_id=3000,
                now_ms=NOW_MS,
            )
        except KafkaError as refusal:
            code = code_for_version(refusal.code, version, fenced_since=END_TXN_FENCED_SINCE)
            raise KafkaError(code, refusal.detail) from None

    return ask


def _init(names_itself: bool) -> Request:
    def ask(
        txn: TransactionMetadata | None,
        identity: ProducerIdentity,
        _: TopicPartition,
        version: int,
    ) -> None:
        try:
            init_producer_id(
                txn,
                "tx-1",
                claimed=identity if names_itself else None,
                timeout_ms=60_000,
                fresh_producer_id=3000,
                now_ms=NOW_MS,
            )
        except KafkaError as refusal:
            # Where markers are due the runtime waits for them and asks again.
            code = code_for_version(
                refusal.code, version, fenced_since=INIT_PRODUCER_ID_FENCED_SINCE
            )
            raise KafkaError(code, refusal.detail) from None

    return ask


REQUESTS: dict[str, Request] = {
    "AddPartitionsToTxn": _add(ADD_PARTITIONS_FENCED_SINCE),
    "AddOffsetsToTxn": _add(ADD_OFFSETS_FENCED_SINCE),
    "Produce": _data(PRODUCE_ABORTABLE_SINCE, PRODUCE_ADDS_SINCE),
    "TxnOffsetCommit": _data(TXN_OFFSET_COMMIT_ABORTABLE_SINCE, TXN_OFFSET_COMMIT_ADDS_SINCE),
    "EndTxn commit": _end(commit=True),
    "EndTxn abort": _end(commit=False),
    "InitProducerId": _init(names_itself=False),
    "InitProducerId naming itself": _init(names_itself=True),
}
#: The versions that a broker serves; the table must have each of them once.
SERVED = {
    "AddPartitionsToTxn": range(6),
    "AddOffsetsToTxn": range(5),
    "Produce": range(3, 14),
    "TxnOffsetCommit": range(6),
    "EndTxn commit": range(6),
    "EndTxn abort": range(6),
    "InitProducerId": range(6),
    "InitProducerId naming itself": range(3, 6),
}

Case = tuple[str, int, str, str, str]


def cases() -> Iterator[Case]:
    """Yield request, version, state, who asks and the answer, of the whole table."""
    for block in TABLE.strip().split("\n\n"):
        title, columns, *rows = block.splitlines()
        for each in title.split(", "):
            request, versions = each.rsplit(" v", 1)
            first, _, last = versions.partition("-")
            for version in range(int(first), int(last or first) + 1):
                for row in rows:
                    state, answers = row[:17].strip(), row[17:].split()
                    for who, answer in zip(columns.split(), answers, strict=True):
                        yield request, version, state, who, answer


def in_state(make_txn: MakeTxn, state: str, who: str) -> TransactionMetadata | None:
    """Return tx-1 as it is where `who` can ask."""
    found = STATES[state]
    if found is None:
        return None
    if who == "rotated":
        return make_txn(
            found, producer_epoch=0, last_producer_epoch=32766, previous_producer_id=900
        )
    if who == "next":
        return make_txn(
            found, producer_epoch=32767, last_producer_epoch=32766, next_producer_id=2000
        )
    return make_txn(found, last_producer_epoch=4)


def answer_to(make_txn: MakeTxn, request: str, version: int, state: str, who: str) -> str:
    if who == "next" and STATES[state] not in UNFINISHED:
        return "-"
    if who == "rotated" and STATES[state] in UNFINISHED:
        return "-"
    partition = NOT_HELD if state == "ongoing*" else HELD
    txn = in_state(make_txn, state, who)
    try:
        REQUESTS[request](txn, WHO.get(who, WHO["current"]), partition, version)
    except KafkaError as refusal:
        return NAMES[refusal.code]
    is_end = request.startswith("EndTxn")
    return "wait" if is_end and txn is not None and txn.state in PREPARED else "ok"


def test_the_table_is_what_is_answered(make_txn: MakeTxn) -> None:
    wrong = [
        f"{request} v{version}, {state}, {who}: {answer} in the table, it is {found}"
        for request, version, state, who, answer in cases()
        if (found := answer_to(make_txn, request, version, state, who)) != answer
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_request_version_state_and_who_once() -> None:
    seen = [case[:4] for case in cases()]
    assert len(seen) == len(set(seen))
    for request, versions in SERVED.items():
        whos = {who for name, _, _, who, _ in cases() if name == request}
        assert whos in ({"anybody"}, set(WHO))
        expected = {(request, v, s, w) for v in versions for s in STATES for w in whos}
        assert {case for case in seen if case[0] == request} == expected
    assert {case[0] for case in seen} == set(SERVED)


@pytest.mark.parametrize("name", CODES)
def test_the_legend_names_real_codes(name: str) -> None:
    assert name in TABLE
