"""Expired delegation tokens go, later where the catalog does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from magnetar.clock import SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.runtime.token_expiry import TokenExpiry
from magnetar.security.principal import user
from magnetar.security.tokens import Lifetimes, Token
from magnetar.storage.catalog import Catalog
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.delegation_tokens import DelegationTokens


class _AwayCatalog(Catalog):
    is_away = True

    def remove_expired_tokens(self, ids: Sequence[str], now_ms: int) -> list[str]:
        if self.is_away:
            raise CatalogUnavailable("away")
        return super().remove_expired_tokens(ids, now_ms)


class _CountingCatalog(Catalog):
    def __init__(self) -> None:
        super().__init__(None)
        self.removed: list[int] = []

    def remove_expired_tokens(self, ids: Sequence[str], now_ms: int) -> list[str]:
        self.removed.append(len(ids))
        return super().remove_expired_tokens(ids, now_ms)


async def test_many_that_expire_at_once_go_in_parts() -> None:
    catalog = _CountingCatalog()
    tokens = DelegationTokens(catalog, b"secret", Lifetimes(1_000, 100))
    for number in range(200):
        tokens.put(Token(str(number), user("ada"), user("ada"), (), 1, 100, 1_000))
    expiry = TokenExpiry(tokens, SystemClock(), BrokerConfig({}))
    expiry.start()
    async with asyncio.timeout(10):
        while tokens.all():
            await asyncio.sleep(0.01)
    assert max(catalog.removed) <= 64
    expiry.stop()
    catalog.close()


async def test_a_catalog_that_is_away_delays_it() -> None:
    catalog = _AwayCatalog(None)
    tokens = DelegationTokens(catalog, b"secret", Lifetimes(1_000, 100))
    tokens.put(Token("one", user("ada"), user("ada"), (), 1, 100, 1_000))
    expiry = TokenExpiry(tokens, SystemClock(), BrokerConfig({}))
    expiry.start()
    assert [token.id for token in tokens.all()] == ["one"]
    expiry.stop()
    catalog.is_away = False
    expiry.start()
    assert tokens.all() == []
    expiry.stop()
    catalog.close()


async def test_a_token_that_another_node_has_renewed_stays(tmp_path: Path) -> None:
    one, other = (
        DelegationTokens(Catalog(tmp_path), b"secret", Lifetimes(2**62, 100)) for _ in range(2)
    )
    token = Token("one", user("ada"), user("ada"), (), 1, 100, 2**61)
    one.put(token)
    other.reload()
    renewed = token._replace(expires_ms=2**60)
    other.put(renewed)
    # This node has not heard of that yet.
    expiry = TokenExpiry(one, SystemClock(), BrokerConfig({}))
    expiry.start()
    expiry.stop()
    one.reload("one")
    assert one.all() == [renewed]
