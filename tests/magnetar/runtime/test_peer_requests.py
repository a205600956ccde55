"""What peers ask of a node whose catalog is away."""

from __future__ import annotations

from typing import Any, cast

import pytest

from magnetar.runtime.peer_messages import CatalogChangedRequest, CatalogChangedResponse
from magnetar.runtime.peer_requests import PeerRequests
from magnetar.storage.database import CatalogUnavailable
from wire.error_code import ErrorCode


class _Catalog:
    def __init__(self) -> None:
        self.is_away = True

    async def see_changes(self) -> int:
        if self.is_away:
            raise CatalogUnavailable("no answer within 2 s")
        return 7


async def test_a_peer_is_told_that_the_catalog_is_away_and_the_log_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog, nothing = _Catalog(), cast(Any, None)
    requests = PeerRequests(nothing, nothing, nothing, nothing, catalog.see_changes, None)

    async def code() -> int:
        answer = await requests.catalog_changed(CatalogChangedRequest(version=7))()
        assert isinstance(answer, CatalogChangedResponse)
        return answer.error_code

    for _ in range(2):
        assert await code() == ErrorCode.REQUEST_TIMED_OUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "read later" in line and "no answer within 2 s" in line
    catalog.is_away = False
    assert await code() == ErrorCode.NONE
    catalog.is_away = True
    await code()
    assert len(capsys.readouterr().err.splitlines()) == 1
