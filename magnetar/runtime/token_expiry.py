"""Delegation tokens that have expired are removed, now and then.

`delegation.token.expiry.check.interval.ms` says how often. A token that has expired lets no client
in before its removal either, since each login checks the expiry. A session that began with a token
ends at the expiry that the token had at the login (KIP-368). A hundred thousand tokens may expire
in one moment, so they are removed in parts, between which clients are served.
"""

from __future__ import annotations

import asyncio

from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.tokens import TokensConfig
from magnetar.logging import get_logger
from magnetar.security.tokens import Token
from magnetar.storage.database import CatalogUnavailable
from magnetar.storage.delegation_tokens import DelegationTokens

#: Tokens that one turn of the event loop removes: some milliseconds, here and at other nodes.
_AT_ONCE = 64
#: From one part to the next. Each is a sync of the catalog.
_PAUSE_S = 0.02

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
            self._look(self._tokens)

    def stop(self) -> None:
        """Remove nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, tokens: DelegationTokens) -> None:
        self._remove(tokens, tokens.expired(self._clock.now_ms()))

    def _remove(self, tokens: DelegationTokens, expired: list[Token]) -> None:
        """Remove a part of these tokens now, and the others soon; then look again, later."""
        part, left = expired[:_AT_ONCE], expired[_AT_ONCE:]
        if part:
            try:
                removed = tokens.remove_expired(part, self._clock.now_ms())
            except CatalogUnavailable as away:
                _log.warning("expired tokens are removed later", reason=str(away))
                left = []
            else:
                if removed:
                    token_ids = removed[:10]
                    _log.info("expired tokens removed", count=len(removed), token_ids=token_ids)
        loop = asyncio.get_running_loop()
        if left:
            self._timer = loop.call_later(_PAUSE_S, self._remove, tokens, left)
        else:
            self._timer = loop.call_later(self._interval_s, self._look, tokens)
