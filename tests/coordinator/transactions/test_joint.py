"""Families of transactional ids: who is whose child; what a decision is for the whole family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator.decision import Decision
from coordinator.partitioning import partition_for
from coordinator.transactions import joint
from coordinator.transactions.add_partitions import add_partitions
from coordinator.transactions.commit_plan import complete, work_due
from coordinator.transactions.end_txn import end_txn
from coordinator.transactions.expire import Lifetimes, expire, term_of
from coordinator.transactions.init_producer_id import init_producer_id
from coordinator.transactions.metadata import PREPARED, State, TopicPartition, TransactionMetadata
from coordinator.transactions.shard import Shard
from wire.error_code import ErrorCode
from wire.errors import KafkaError

MakeTxn = Callable[..., TransactionMetadata]
Txn = TransactionMetadata

NOW_MS = 50_000
SEALING = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
IDLE = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
LIFETIMES = Lifetimes(transactional_id_ms=600_000, child_ms=20_000, vote_ms=5_000)


# Names.


@pytest.mark.parametrize(
    ("transactional_id", "parent_id"),
    [
        ("query~>7.0.2f5e", "query"),
        ("q~>\N{GREEK SMALL LETTER ALPHA}", "q"),
        ("a b~>c d", "a b"),
        ("plain", None),
        ("a~b>c", None),
        ("", None),
    ],
)
def test_a_child_names_its_parent(transactional_id: str, parent_id: str | None) -> None:
    assert joint.parent_of(transactional_id, "~>") == parent_id


@pytest.mark.parametrize(
    ("transactional_id", "said"),
    [
        ("a~>b~>c", "more than one '~>'"),
        ("a~>~>", "more than one '~>'"),
        ("~>child", "nothing before its '~>'"),
        ("parent~>", "nothing behind its '~>'"),
        ("~>", "nothing before its '~>'"),
        ("a~>b\0", "cannot be printed"),
        ("a\n~>b", "cannot be printed"),
        ("a~>b\u2028", "cannot be printed"),
        ("a~>" + "b" * 1022, "longer than 1024 bytes"),
    ],
)
def test_a_name_that_is_neither_child_nor_plain_is_refused(
    transactional_id: str, said: str
) -> None:
    with pytest.raises(KafkaError, match=said) as refused:
        joint.parent_of(transactional_id, "~>")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("transactional_id", ["a~>b", "a~>b~>c", "~>", "a~>\0"])
def test_without_a_separator_every_id_is_plain(transactional_id: str) -> None:
    assert joint.parent_of(transactional_id, "") is None
    found = joint.coordinator_partition(transactional_id, "", 50)
    assert found == partition_for(transactional_id, 50)


def test_a_child_lives_where_its_parent_does() -> None:
    for name in ("query", "a b", "\N{GREEK SMALL LETTER ALPHA}"):
        home = partition_for(name, 50)
        assert joint.coordinator_partition(name, "~>", 50) == home
        for child in range(20):
            assert joint.coordinator_partition(f"{name}~>{child}", "~>", 50) == home
            assert joint.coordinator_partition(f"{name}/{child}", "/", 50) == home


# Families.


class Family:
    """A parent and its children in one shard, driven by requests."""

    def __init__(self, *members: Txn) -> None:
        self.shard = Shard(7)
        for member in members:
            self.shard.apply(member)
        self.fresh: Iterator[int] = iter(range(9000, 9100))

    def decided(
        self,
        transactional_id: str,
        decide: Callable[[Txn | None], Decision[Txn, object]],
        *,
        is_adoption: bool = False,
    ) -> tuple[Txn, ...]:
        """Return what is decided about an id and its family; nothing is applied."""
        before = self.shard.get(transactional_id)
        return joint.joined(
            before,
            decide(before),
            self.shard,
            now_ms=NOW_MS,
            take_producer_id=lambda: next(self.fresh),
            is_adoption=is_adoption,
        ).records

    def end(self, transactional_id: str, *, commit: bool, version: int = 2) -> tuple[Txn, ...]:
        txn = self.shard.get(transactional_id)
        assert txn is not None
        return self.decided(
            transactional_id,
            lambda before: end_txn(
                before,
                txn.identity,
                commit=commit,
                transaction_version=version,
                coordinator_partition=7,
                fresh_producer_id=8000,
                now_ms=NOW_MS,
            ),
        )

    def init(self, transactional_id: str) -> tuple[Txn, ...]:
        return self.decided(
            transactional_id,
            lambda txn: init_producer_id(
                txn,
                transactional_id,
                parent_id=joint.parent_of(transactional_id, "~>"),
                claimed=None,
                timeout_ms=60_000,
                fresh_producer_id=8000,
                now_ms=NOW_MS,
            ),
        )

    def add(self, transactional_id: str, *, is_adoption: bool = False) -> tuple[Txn, ...]:
        txn = self.shard.get(transactional_id)
        assert txn is not None
        return self.decided(
            transactional_id,
            lambda before: add_partitions(
                before,
                txn.identity,
                frozenset({TopicPartition("b", 0)}),
                coordinator_partition=7,
                now_ms=NOW_MS,
                transaction_version=2,
            ),
            is_adoption=is_adoption,
        )

    def expire(self, transactional_id: str, now_ms: int) -> tuple[Txn, ...]:
        txn = self.shard.get(transactional_id)
        parent_id = (txn.parent_id if txn is not None else None) or ""
        parent, newest = self.shard.get(parent_id), self.shard.newest_child(parent_id)
        return self.decided(
            transactional_id,
            lambda txn: expire(
                txn, LIFETIMES, now_ms, parent=parent, newest=newest, fresh_producer_id=8000
            ),
        )


@pytest.fixture
def make_child(make_txn: MakeTxn) -> MakeTxn:
    def make(name: str, state: State, **changes: object) -> Txn:
        number = 2000 + sum(name.encode())
        defaults = {"transactional_id": f"tx-1~>{name}", "parent_id": "tx-1", "producer_id": number}
        return make_txn(state, **(defaults | changes))

    return make


def told(records: tuple[Txn, ...]) -> list[tuple[str, State, int]]:
    return [(each.transactional_id, each.state, each.producer_epoch) for each in records]


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(("version", "epoch"), [(0, 5), (2, 6)])
def test_a_childs_commit_is_a_vote_while_its_parent_is_idle(
    state: State, version: int, epoch: int, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(state), make_child("a", State.ONGOING))
    (vote,) = family.end("tx-1~>a", commit=True, version=version)
    assert (vote.state, vote.producer_epoch) == (State.VOTED, epoch)
    assert vote.partitions and work_due(vote) is None  # nothing is marked


def test_a_child_may_vote_for_a_parent_that_nobody_has_seen(make_child: MakeTxn) -> None:
    family = Family(make_child("a", State.ONGOING))
    assert told(family.end("tx-1~>a", commit=True)) == [("tx-1~>a", State.VOTED, 6)]


@pytest.mark.parametrize("state", SEALING)
@pytest.mark.parametrize("version", [1, 2])
def test_a_late_vote_is_an_abort_that_fences_and_is_refused(
    state: State, version: int, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(state), make_child("a", State.ONGOING))
    (aborted,) = family.end("tx-1~>a", commit=True, version=version)
    assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, 6)
    assert aborted.last_producer_epoch == -1  # so its retry is PRODUCER_FENCED too
    refusal = joint.refusal_of_late_vote(aborted)
    assert refusal is not None and refusal.code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("parent_state", [*IDLE, *SEALING])
def test_a_childs_abort_is_an_abort_whatever_its_parent_does(
    version: int, parent_state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(parent_state), make_child("a", State.ONGOING))
    (aborted,) = family.end("tx-1~>a", commit=False, version=version)
    assert aborted.state is State.PREPARE_ABORT


@pytest.mark.parametrize("parent_state", [*IDLE, *SEALING])
@pytest.mark.parametrize("state", IDLE)
def test_a_child_begins_only_while_its_parent_is_idle(
    parent_state: State, state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(parent_state), make_child("a", state))
    if parent_state in IDLE:
        assert told(family.add("tx-1~>a")) == [("tx-1~>a", State.ONGOING, 5)]
    else:
        with pytest.raises(KafkaError) as refused:
            family.add("tx-1~>a")
        assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", IDLE)
def test_a_child_whose_begin_a_crash_has_lost_is_adopted_also_under_the_seal(
    state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(State.ONGOING), make_child("a", state))
    (adopted,) = family.add("tx-1~>a", is_adoption=True)
    assert adopted.state is State.ONGOING
    family.shard.apply(adopted)
    assert told(family.end("tx-1", commit=True))[1:] == [("tx-1~>a", State.PREPARE_ABORT, 6)]


@pytest.mark.parametrize("parent_state", [*IDLE, *SEALING])
def test_a_child_that_is_open_may_add_whatever_its_parent_does(
    parent_state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(parent_state), make_child("a", State.ONGOING))
    assert told(family.add("tx-1~>a")) == [("tx-1~>a", State.ONGOING, 5)]


@pytest.mark.parametrize("parent_state", [*IDLE, *SEALING])
def test_a_vote_is_withdrawn_by_a_new_incarnation_only_while_its_parent_is_idle(
    parent_state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(parent_state), make_child("a", State.VOTED))
    if parent_state in IDLE:
        assert told(family.init("tx-1~>a")) == [("tx-1~>a", State.PREPARE_ABORT, 6)]
    else:
        with pytest.raises(KafkaError) as refused:
            family.init("tx-1~>a")
        assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("parent_state", [*IDLE, *SEALING])
def test_a_vote_expires_only_while_its_parent_is_idle(
    parent_state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    parent, vote = make_txn(parent_state), make_child("a", State.VOTED)
    family = Family(parent, vote)
    assert family.expire("tx-1~>a", 14_999) == ()
    if parent_state in IDLE:
        term = term_of(vote, LIFETIMES, parent)
        assert term is not None and term.due_ms == 15_000
        (aborted,) = family.expire("tx-1~>a", 15_000)
        assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, 6)
        assert aborted.last_producer_epoch == -1
    else:
        assert term_of(vote, LIFETIMES, parent) is None
        assert family.expire("tx-1~>a", 10**9) == ()


@pytest.mark.parametrize("state", [State.ONGOING, State.VOTED])
def test_a_vote_is_renewed_while_its_siblings_begin_and_vote(
    state: State, make_child: MakeTxn
) -> None:
    """A round of many waves of workers may last longer than any one vote is kept."""
    first = make_child("a", State.VOTED)
    family = Family(make_child("b", State.VOTED), first)
    family.shard.apply(make_child("b", state, updated_at_ms=13_000))
    assert family.expire("tx-1~>a", 17_999) == ()
    assert told(family.expire("tx-1~>a", 18_000)) == [("tx-1~>a", State.PREPARE_ABORT, 6)]
    # A sibling that has ended renews nothing.
    family.shard.apply(make_child("b", State.COMPLETE_ABORT, updated_at_ms=14_000))
    assert told(family.expire("tx-1~>a", 15_000)) == [("tx-1~>a", State.PREPARE_ABORT, 6)]


@pytest.mark.parametrize("state", IDLE)
def test_a_child_that_nobody_uses_is_forgotten_after_a_time_of_its_own(
    state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(make_txn(State.ONGOING), make_child("a", state))
    assert family.expire("tx-1~>a", 29_999) == ()
    assert told(family.expire("tx-1~>a", 30_000)) == [("tx-1~>a", State.DEAD, 5)]
    term = term_of(make_txn(state), LIFETIMES)
    assert term is not None and term.due_ms == 610_000


def whole(make_txn: MakeTxn, make_child: MakeTxn, parent_state: State) -> Family:
    """A parent with two votes, of both versions, a child that is open, and one of each end."""
    return Family(
        make_txn(parent_state),
        make_child("v1", State.VOTED),
        make_child("v2", State.VOTED, last_producer_epoch=4, client_transaction_version=2),
        make_child("open", State.ONGOING),
        make_child("idle", State.EMPTY),
        make_child("done", State.COMPLETE_COMMIT),
        make_child("going", State.PREPARE_ABORT),
        make_txn(State.ONGOING, transactional_id="tx-2", producer_id=7000),
        make_txn(State.VOTED, transactional_id="tx-2~>v", parent_id="tx-2", producer_id=7001),
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_is_one_record_that_names_every_vote_and_ends_who_has_not_voted(
    version: int, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = whole(make_txn, make_child, State.ONGOING)
    decision, *others = family.end("tx-1", commit=True, version=version)
    assert decision.state is State.PREPARE_COMMIT
    assert [vote.transactional_id for vote in decision.votes] == ["tx-1~>v1", "tx-1~>v2"]
    votes = [family.shard.get(vote.transactional_id) for vote in decision.votes]
    assert [vote[1:] for vote in decision.votes] == [each.identity for each in votes if each]
    assert told(tuple(others)) == [("tx-1~>open", State.PREPARE_ABORT, 6)]


def test_what_a_commit_owes_is_the_markers_of_all_that_it_names(
    make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = whole(make_txn, make_child, State.ONGOING)
    for record in family.end("tx-1", commit=True):
        family.shard.apply(record)
    work = {one.transactional_id: one for one in family.shard.work_due()}
    assert sorted(work) == ["tx-1", "tx-1~>going", "tx-1~>open"]
    own = work["tx-1"]
    assert own.commit and own.partitions
    assert [(one.transactional_id, one.commit) for one in own.votes] == [
        ("tx-1~>v1", True),
        ("tx-1~>v2", True),
    ]
    assert all(one.partitions for one in own.votes)
    assert not work["tx-1~>open"].commit
    ended = family.decided("tx-1", lambda txn: complete(txn, work["tx-1"], NOW_MS))
    assert [(name, state) for name, state, _ in told(ended)] == [
        ("tx-1", State.COMPLETE_COMMIT),
        ("tx-1~>v1", State.COMPLETE_COMMIT),
        ("tx-1~>v2", State.COMPLETE_COMMIT),
    ]
    for record in ended:
        family.shard.apply(record)
    assert not any(record.votes or record.partitions for record in ended)
    assert family.shard.children("tx-1") == {}


@pytest.mark.parametrize("how", ["abort, version 1", "abort, version 2", "init", "its time passes"])
def test_an_abort_ends_the_whole_family(how: str, make_txn: MakeTxn, make_child: MakeTxn) -> None:
    family = whole(make_txn, make_child, State.ONGOING)
    ways = {
        "abort, version 1": lambda: family.end("tx-1", commit=False, version=1),
        "abort, version 2": lambda: family.end("tx-1", commit=False),
        "init": lambda: family.init("tx-1"),
        "its time passes": lambda: family.expire("tx-1", 10**9),
    }
    decision, *others = ways[how]()
    assert decision.state is State.PREPARE_ABORT and not decision.votes
    assert told(tuple(others)) == [
        ("tx-1~>v1", State.PREPARE_ABORT, 6),
        ("tx-1~>v2", State.PREPARE_ABORT, 6),
        ("tx-1~>open", State.PREPARE_ABORT, 6),
    ]
    assert all(other.last_producer_epoch == -1 for other in others)


@pytest.mark.parametrize("state", IDLE)
def test_a_new_incarnation_of_an_idle_parent_leaves_the_votes_alone(
    state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = whole(make_txn, make_child, state)
    assert told(family.init("tx-1")) == [("tx-1", State.EMPTY, 6)]


@pytest.mark.parametrize("state", IDLE)
def test_the_abort_of_nothing_by_a_parent_is_an_abort(
    state: State, make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = whole(make_txn, make_child, state)
    parent, *others = family.end("tx-1", commit=False)
    assert parent.state is State.COMPLETE_ABORT
    assert {other.transactional_id for other in others} == {"tx-1~>v1", "tx-1~>v2", "tx-1~>open"}
    assert {other.state for other in others} == {State.PREPARE_ABORT}


def test_every_child_whose_epochs_are_used_up_gets_a_producer_id_of_its_own(
    make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = Family(
        make_txn(State.ONGOING),
        make_child("told", State.VOTED, producer_epoch=32767, next_producer_id=8001),
        make_child("last", State.VOTED, producer_epoch=32766),
        make_child("open", State.ONGOING, producer_epoch=32766),
        make_child("young", State.VOTED),
    )
    _, *others = family.end("tx-1", commit=False)
    assert [(other.producer_epoch, other.next_producer_id) for other in others] == [
        (32767, 9000),
        (32767, 9001),
        (32767, 9002),
        (6, -1),
    ]


def test_children_that_are_open_or_have_voted_are_limited(
    make_txn: MakeTxn, make_child: MakeTxn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "CHILDREN_MAX", 2)
    family = Family(
        make_child("a", State.VOTED), make_child("b", State.ONGOING), make_child("c", State.EMPTY)
    )
    with pytest.raises(KafkaError, match="has 2 children") as refused:
        family.add("tx-1~>c")
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert told(family.add("tx-1~>b")) == [("tx-1~>b", State.ONGOING, 5)]
    family.shard.apply(make_child("a", State.COMPLETE_ABORT))
    assert told(family.add("tx-1~>c")) == [("tx-1~>c", State.ONGOING, 5)]


def test_an_id_without_family_is_not_even_looked_at(make_txn: MakeTxn, make_child: MakeTxn) -> None:
    family = Family(make_txn(State.ONGOING), make_child("a", State.EMPTY))
    alone = family.shard.get("tx-1")
    assert alone is not None
    decision = Decision(records=(alone,), answer=None)
    found = joint.joined(alone, decision, family.shard, now_ms=NOW_MS, take_producer_id=pytest.fail)
    assert found is decision


def test_a_decision_whose_vote_is_gone_stops_the_broker(
    make_txn: MakeTxn, make_child: MakeTxn
) -> None:
    family = whole(make_txn, make_child, State.ONGOING)
    decision, *_ = family.end("tx-1", commit=True)
    family.shard.apply(decision)
    family.shard.remove("tx-1~>v1")
    with pytest.raises(AssertionError, match="tx-1~>v1"):
        family.shard.work_due()


@pytest.mark.parametrize("state", [*IDLE, *PREPARED - {State.PREPARE_EPOCH_FENCE}])
def test_past_children_are_not_counted_as_children(state: State, make_child: MakeTxn) -> None:
    family = Family(make_child("a", State.VOTED))
    family.shard.apply(make_child("a", state))
    assert family.shard.children("tx-1") == {}
