"""A shard is the fold of its records: wherever it is cut, replay and the work due end the same.

Random clients drive one shard's rules. After every record the log is replayed from its bytes and
must give the live state; then the crash: replay, do what is due, and see that each transaction has
one outcome, the one that was decided, or none.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.transactions.commit_plan import complete
from coordinator.transactions.metadata import State
from tests.coordinator.transactions.shard_history import History, check_identities, replay, states

steps = st.lists(
    st.tuples(
        st.sampled_from(["init", "add", "add", "commit", "abort", "expire", "work", "work", "age"]),
        st.sampled_from(["tx-1", "tx-2"]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([0, 1, 1, 2, 60, 1_001]),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(steps)
def test_replay_is_the_live_state_after_every_step(plan: list[tuple[str, str, int, int]]) -> None:
    history = History()
    for step in plan:
        history.perform(step)
        assert states(replay(history.log)) == states(history.shard)


@settings(deadline=None)
@given(steps)
def test_a_crash_at_any_record_is_settled_by_replay_and_work_due(
    plan: list[tuple[str, str, int, int]],
) -> None:
    history = History()
    for step in plan:
        history.perform(step)
    for cut in range(len(history.log) + 1):
        shard = replay(history.log[:cut])
        decided = states(shard)
        for work in shard.work_due():
            for record in complete(shard.get(work.transactional_id), work, 10**9).records:
                shard.apply(record)
        assert shard.work_due() == []
        for transactional_id, txn in states(shard).items():
            before = decided[transactional_id]
            assert txn.txn_id == before.txn_id
            expected = {
                State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
                State.PREPARE_ABORT: State.COMPLETE_ABORT,
            }.get(before.state, before.state)
            assert txn.state is expected


@settings(deadline=None)
@given(steps)
def test_transactions_are_never_named_twice(plan: list[tuple[str, str, int, int]]) -> None:
    history = History()
    begun: list[object] = []
    for step in plan:
        before = {txn.transactional_id: txn.state for txn in history.shard}
        history.perform(step)
        for txn in history.shard:
            if txn.state is State.ONGOING and before.get(txn.transactional_id) is not State.ONGOING:
                begun.append(txn.txn_id)
    assert len(begun) == len(set(begun))


@settings(deadline=None)
@given(steps)
def test_no_client_is_given_the_epoch_of_the_fence_or_anothers_producer_id(
    plan: list[tuple[str, str, int, int]],
) -> None:
    check_identities(plan)
