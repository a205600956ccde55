"""Names of APIs, errors and crash points: those that there are, and what is said of others."""

from __future__ import annotations

import pytest

from magnetar.apis.registry import load_apis
from magnetar.faults.names import Mistake, api_key, crash_point, crash_points, error_code
from magnetar.testing.api import Api
from wire.api import API_NAMES
from wire.error_code import ErrorCode


@pytest.fixture(autouse=True)
def served() -> None:
    load_apis()


def test_the_library_names_every_api_of_the_protocol() -> None:
    assert [api.value for api in Api] == list(API_NAMES.values())
    assert [api.name for api in Api][:3] == ["PRODUCE", "FETCH", "LIST_OFFSETS"]


@pytest.mark.parametrize("name", ["EndTxn", "END_TXN", "end_txn", "endtxn", str(Api.END_TXN)])
def test_an_api_is_called_as_in_the_protocol_or_as_a_constant(name: str) -> None:
    assert api_key(name) == 26


def test_every_served_api_is_found_by_its_name_and_has_its_points() -> None:
    for key in load_apis():
        assert api_key(API_NAMES[key]) == key
    for point in crash_points():
        assert crash_point(point)[0] == point
    assert crash_point("end_txn.decided") == ("end_txn.decided", None)
    assert crash_point("produce.appended") == ("produce.appended", 0)


@pytest.mark.parametrize("name", ["produce", "produce.", "fetch.appended", "share_fetch.received"])
def test_points_that_nothing_reaches_are_none(name: str) -> None:
    with pytest.raises(Mistake, match="there is no crash point"):
        crash_point(name)


def test_an_unknown_name_is_told_with_those_that_are_near() -> None:
    with pytest.raises(Mistake, match=r"no API 'EndTx'\. Did you mean EndTxn"):
        api_key("EndTx")
    with pytest.raises(Mistake, match=r"no API 'qqqqqqqqqq'$"):
        api_key("qqqqqqqqqq")
    with pytest.raises(Mistake, match="Did you mean NOT_LEADER_OR_FOLLOWER"):
        error_code("not_leader_or_follow")
    with pytest.raises(Mistake, match=r"Did you mean end_txn\.decided"):
        crash_point("end_txn.decide")
    with pytest.raises(Mistake, match="there is no error 'NONE'"):
        error_code("NONE")
    assert error_code("fenced_leader_epoch") is ErrorCode.FENCED_LEADER_EPOCH
