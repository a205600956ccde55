"""Which requests a fault meets, and what befalls one that several wait for."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.faults.rules import (
    DECIDED,
    MARKING,
    NOTHING,
    OWN_CLIENT_ID,
    Fault,
    Faults,
    Kind,
    Named,
)
from magnetar.testing.access import CLIENT_ID

PRODUCE, FETCH, END_TXN = 0, 1, 26
NAMED = Named({"t"}, {"g"}, {"x"})


def armed(*faults: dict[str, Any]) -> Faults:
    made = Faults()
    for wanted in faults:
        made.arm(Fault(**{"id": made.next_id(), "kind": Kind.FAIL, **wanted}))
    return made


def met(faults: Faults, api_key: int = PRODUCE, client_id: str | None = "app") -> int | None:
    """Return the id of the fault that a request meets."""
    fault = faults.plan(api_key, client_id, lambda: NAMED).fault
    return None if fault is None else fault.id


def test_a_fault_meets_as_many_requests_as_it_is_for() -> None:
    faults = armed({"api_key": PRODUCE, "times": 2})
    assert [met(faults), met(faults, FETCH), met(faults), met(faults)] == [1, None, 1, None]
    assert faults.hits() == {"1": 2}
    assert met(armed({"times": None}), FETCH) == 1


def test_the_first_requests_may_go_by() -> None:
    faults = armed({"skip": 2, "times": 1})
    assert [met(faults) for _ in range(4)] == [None, None, 1, None]


@pytest.mark.parametrize(
    ("wanted", "meets"),
    [
        ({"topic": "t"}, True),
        ({"topic": "u"}, False),
        ({"group": "g"}, True),
        ({"group": "h"}, False),
        ({"transactional_id": "x"}, True),
        ({"transactional_id": "y"}, False),
        ({"topic": "t", "group": "h"}, False),
        ({"client_id": "app"}, True),
        ({"client_id": "other"}, False),
    ],
)
def test_a_fault_is_for_what_it_names(wanted: dict[str, Any], meets: bool) -> None:
    assert (met(armed(wanted)) == 1) is meets


def test_two_of_a_kind_come_one_after_the_other_and_delays_add_up() -> None:
    faults = armed(
        {"kind": Kind.DELAY, "seconds": 0.5},
        {"times": 1},
        {"kind": Kind.LOSE_ANSWER, "times": 1},
        {"kind": Kind.DELAY, "seconds": 0.25},
    )
    plans = [faults.plan(PRODUCE, None, lambda: NAMED) for _ in range(3)]
    assert [(plan.delay_s, plan.fault and plan.fault.id) for plan in plans] == [
        (0.5, 2),
        (0.5, 3),
        (0.75, None),
    ]


def test_the_librarys_own_requests_meet_nothing() -> None:
    assert OWN_CLIENT_ID == CLIENT_ID
    assert armed({}).plan(PRODUCE, CLIENT_ID, lambda: NAMED) is NOTHING


def test_the_moments_of_a_commit_are_met_by_transactional_id_and_by_no_request() -> None:
    faults = armed({"kind": Kind.KILL, "point": DECIDED, "transactional_id": "x", "times": 1})
    assert met(faults, END_TXN) is None
    assert faults.api_keys() == set()
    assert faults.at_commit(MARKING, {"x"}) is None
    assert faults.at_commit(DECIDED, {"y"}) is None
    assert faults.at_commit(DECIDED, {"x", "y"}) is not None
    assert faults.at_commit(DECIDED, {"x"}) is None


def test_the_apis_that_are_waited_for_are_those_of_faults_that_are_left() -> None:
    faults = armed({"api_key": PRODUCE, "times": 1}, {"api_key": FETCH})
    assert faults.api_keys() == {PRODUCE, FETCH}
    met(faults)
    assert faults.api_keys() == {FETCH}
    assert faults.disarm(2) == 0
    assert faults.api_keys() == set()
    assert armed({"kind": Kind.DELAY, "seconds": 1.0}).api_keys() is None
