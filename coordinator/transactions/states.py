"""The states of a transactional id, with Kafka's names and ids, and who may precede whom.

Source: KIP-98, KIP-360, KIP-890; org.apache.kafka.coordinator.transaction.TransactionState.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a transactional id stands; the number is what `__transaction_state` holds."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired. Written as a tombstone, so never found in a value."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's, between a fence and its abort; one record holds both here, so it is never
    entered."""
    VOTED = 100
    """Ours (`joint`): a child's commit, which its parent's decision will carry out or abort.
    Written as ONGOING with a tagged field, so that Kafka's tools read it."""

    @property
    def label(self) -> str:
        """Kafka's spelling, as its tools show it: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def told_as(self) -> State:
        """The state that clients are told: one of Kafka's, since some refuse any other."""
        return State.ONGOING if self is State.VOTED else self


_ENDED = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

#: state -> the states it may be entered from. Nothing else is ever appended.
PREDECESSORS: dict[State, frozenset[State]] = {
    State.EMPTY: _ENDED | {State.EMPTY},
    State.ONGOING: _ENDED | {State.EMPTY, State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.PREPARE_EPOCH_FENCE, State.VOTED}),
    # From VOTED: the decision is its parent's record.
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT, State.VOTED}),
    # From EMPTY or an ended one: the abort of a transaction that wrote nothing (version 2).
    State.COMPLETE_ABORT: _ENDED | {State.EMPTY, State.PREPARE_ABORT},
    State.DEAD: _ENDED | {State.EMPTY},
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
    State.VOTED: frozenset({State.ONGOING}),
}

#: The decision is made and logged, the markers are not all durable.
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE})

#: Its producer can do nothing more about the transaction, nor begin the next one yet.
UNSETTLED = PREPARED | {State.VOTED}
