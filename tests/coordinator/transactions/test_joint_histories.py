"""Random histories of a parent and its children: each joint transaction is decided whole or not at
all, however requests interleave and wherever the log is cut."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transactions import joint
from coordinator.transactions.commit_plan import complete
from coordinator.transactions.metadata import State, TransactionMetadata
from coordinator.transactions.shard import Shard
from tests.coordinator.transactions.shard_history import (
    History,
    Step,
    check_identities,
    replay,
    states,
)

PARENT = "p"
CHILDREN = ("p~>a", "p~>b", "p~>c")
Txns = Mapping[str, TransactionMetadata]

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["init", "add", "add", "commit", "commit", "abort", "expire", "work", "age"]
        ),
        st.sampled_from([PARENT, *CHILDREN]),
        st.sampled_from([0, 0, 0, 0, 1]),
        st.sampled_from([0, 1, 1, 2, 60, 1_001]),
    ),
    max_size=40,
)
#: Some children have voted and others are open: random requests alone seldom reach this.
begun: list[Step] = [
    (kind, name, 0, 2 * (number % 2))
    for number, name in enumerate((*CHILDREN, PARENT))
    for kind in ("init", "add", "commit")
    if (kind, name) not in {("commit", "p~>c"), ("add", PARENT), ("commit", PARENT)}
]
plans = steps.map(lambda plan: [*begun, *plan])


def votes(txns: Txns) -> dict[str, tuple[int, int]]:
    return {name: txn.identity for name, txn in txns.items() if txn.state is State.VOTED}


def check_step(before: Txns, after: Txns) -> None:
    """Check what one step made of the family."""
    parent, parent_after = before.get(PARENT), after.get(PARENT)
    was_sealed = joint.is_sealed(parent)
    if was_sealed and parent_after is parent:
        assert votes(before) == votes(after)
    named = {} if parent is None else {vote.transactional_id: vote for vote in parent.votes}
    for name in CHILDREN:
        child, child_after = before.get(name), after.get(name)
        if child_after is None or child_after is child:
            continue
        assert child_after.state is not State.PREPARE_COMMIT
        begins = child_after.state is State.ONGOING and (
            child is None or child.state is not State.ONGOING
        )
        assert not (begins and was_sealed)
        if child is None or child.state is not State.VOTED:
            assert child_after.state is not State.COMPLETE_COMMIT
        elif child_after.state is State.COMPLETE_COMMIT:
            assert named[name][1:] == child.identity
            assert parent_after is not None and parent_after.state is State.COMPLETE_COMMIT
    if parent_after is None or parent_after is parent:
        return
    if parent_after.state is State.PREPARE_COMMIT:
        assert {vote[0]: vote[1:] for vote in parent_after.votes} == votes(before) == votes(after)
    else:
        assert not parent_after.votes
    if parent_after.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert not any(after[name].state is State.ONGOING for name in CHILDREN if name in after)
    if parent_after.state in (State.PREPARE_ABORT, State.COMPLETE_COMMIT):
        assert not votes(after)


@settings(deadline=None)
@given(plans)
def test_a_joint_transaction_is_decided_whole_or_not_at_all(plan: list[Step]) -> None:
    history = History()
    for step in plan:
        before = states(history.shard)
        history.perform(step)
        check_step(before, states(history.shard))


@settings(deadline=None)
@given(plans)
def test_replay_is_the_live_family_after_every_step(plan: list[Step]) -> None:
    history = History()
    for step in plan:
        history.perform(step)
        replayed = replay(history.log)
        assert states(replayed) == states(history.shard)
        assert replayed.children(PARENT) == history.shard.children(PARENT)
        assert {one.transactional_id: one for one in replayed.work_due()} == {
            one.transactional_id: one for one in history.shard.work_due()
        }


@settings(deadline=None)
@given(plans)
def test_a_crash_between_any_two_batches_ends_every_vote_as_it_was_decided(
    plan: list[Step],
) -> None:
    history = History()
    for step in plan:
        history.perform(step)
    for cut in range(len(history.log) + 1):
        shard = replay(history.log[:cut])
        decided = states(shard)
        settle(shard)
        parent = decided.get(PARENT)
        named = set() if parent is None else {vote.transactional_id for vote in parent.votes}
        for name in CHILDREN:
            if name in decided and decided[name].state is State.VOTED:
                expected = State.COMPLETE_COMMIT if name in named else State.VOTED
                found = shard.get(name)
                assert found is not None and found.state is expected
                assert found.txn_id == decided[name].txn_id


def settle(shard: Shard) -> None:
    """Do what is due, each decision in one step."""
    for work in shard.work_due():
        before = shard.get(work.transactional_id)
        completed = complete(before, work, 10**9)
        whole = joint.joined(before, completed, shard, now_ms=10**9, take_producer_id=int)
        for each in whole.records:
            shard.apply(each)
    assert shard.work_due() == []


@settings(deadline=None)
@given(plans)
def test_no_member_is_given_the_epoch_of_a_fence_or_anothers_producer_id(plan: list[Step]) -> None:
    check_identities(plan)
