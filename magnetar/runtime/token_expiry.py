"""Delegation tokens that have expired are removed, now and then.

`delegation.token.expiry.check.interval.ms` says how often. A token that has expired lets no client
in before its removal either, since each login checks the expiry. A session that began with a token
ends at the expiry that the token had at the login (KIP-368).
"""

from __future__ import annotations

import asyncio

from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.tokens import TokensConfig
from magnetar.logging import get_logger
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.delegation_tokens import DelegationTokens

_log = get_logger("tokens")


class TokenExpiry:
    """The timer of one broker; it does nothing without tokens."""

    def __init__(self, tokens: DelegationTokens | None, clock: Clock, config: BrokerConfig) -> None:
        self._tokens = tokens
        self._clock = clock
        self._interval_s = (
            config.view(TokensConfig).delegation_token_expiry_check_interval_ms / 1000
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Remove what has expired, now and periodically."""
        if self._tokens is not None:
            self._remove(self._tokens)

    def stop(self) -> None:
        """Remove nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _remove(self, tokens: DelegationTokens) -> None:
        expired = tokens.expired(self._clock.now_ms())
        if expired:
            token_ids = [token.id for token in expired[:10]]
            try:
                tokens.remove(expired)
            except CatalogUnavailable as away:
                _log.warning("expired tokens are removed later", reason=str(away))
            else:
                _log.info("expired tokens removed", token_ids=token_ids)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._remove, tokens)
