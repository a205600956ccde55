"""What an earlier release served."""

from __future__ import annotations

import pytest

from magnetar.apis.registry import Api, load_apis
from magnetar.faults.names import Mistake
from magnetar.faults.releases import RELEASES, as_release, cap
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey

SERVED = load_apis()


def released(release: str) -> dict[str, Api]:
    return {api.name: api for api in as_release(SERVED, release).values()}


def test_no_release_serves_more_than_the_next() -> None:
    for before, after in zip(RELEASES, RELEASES[1:], strict=False):
        earlier, later = released(before), released(after)
        assert earlier.keys() <= later.keys()
        assert all(api.max_version <= later[name].max_version for name, api in earlier.items())


def test_each_release_has_what_clients_know_it_by() -> None:
    assert released("3.9")["EndTxn"].max_version == 4
    assert released("4.0")["EndTxn"].max_version == 5
    assert "ConsumerGroupHeartbeat" not in released("3.6")
    assert "DescribeTransactions" not in released("2.8")
    assert released("4.3")["TxnOffsetCommit"].max_version == 5


def test_the_newest_release_has_all_that_is_served() -> None:
    assert as_release(SERVED, RELEASES[-1]) == SERVED


def test_every_version_left_is_one_that_is_served() -> None:
    for release in RELEASES:
        for api in released(release).values():
            assert api.min_version <= api.max_version <= SERVED[api.key].max_version


def test_api_versions_says_no_more_than_the_release_has() -> None:
    apis = as_release(SERVED, "3.9")
    said = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=26, max_version=5), ApiVersion(api_key=75, max_version=9)],
        finalized_features=[FinalizedFeatureKey(name="transaction.version")],
        finalized_features_epoch=1,
    )
    del apis[75]
    cap(said, apis, "3.9")
    assert [(each.api_key, each.max_version) for each in said.api_keys] == [(26, 4)]
    assert said.finalized_features == []
    assert said.finalized_features_epoch == -1


def test_an_unknown_release_is_told_with_those_that_there_are() -> None:
    with pytest.raises(Mistake, match=r"no release '3\.99'\. Choose one of 2\.8, 3\.0"):
        as_release(SERVED, "3.99")
