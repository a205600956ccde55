"""The states of a classic group and their legal predecessors. Source: KIP-62."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # waits for the members to (re)join
    COMPLETING_REBALANCE = "CompletingRebalance"  # a generation is formed, its leader assigns
    STABLE = "Stable"  # every member has its assignment, or may ask for it
    DEAD = "Dead"  # deleted; nothing follows


#: state -> the states from which it may be entered.
LEGAL_PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
