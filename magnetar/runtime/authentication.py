"""How clients of each listener authenticate: mechanisms, their users, and new sessions.

The rules of a login are in `magnetar.security`; here they meet the settings and the catalog.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from magnetar.config.broker import BrokerConfig
from magnetar.config.jaas import parse_jaas
from magnetar.config.listeners import Listener
from magnetar.config.load import ConfigError
from magnetar.config.security import SecurityConfig, listener_security
from magnetar.runtime.scram_users import ScramUsers
from magnetar.security.plain import PlainExchange
from magnetar.security.sasl import Mechanism, Mechanisms
from magnetar.security.scram import HASHES, ScramExchange
from magnetar.security.session import Session
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.scram_credentials import ScramCredentials

_NONCE_BYTES = 24
_USER_OPTION = "user_"
MECHANISM_NAMES = ("PLAIN", *HASHES)


class Authentication:
    """The mechanisms of each listener with SASL, and the users behind them."""

    def __init__(
        self,
        config: BrokerConfig,
        credentials: ScramCredentials,
        tokens: DelegationTokens | None = None,
    ) -> None:
        self.credentials = credentials
        self._tokens = tokens
        self._config = config
        self._mechanisms: dict[str, Mechanisms] = {}
        self._security: dict[str, SecurityConfig] = {}

    def serve(self, listeners: Sequence[Listener]) -> None:
        """Read the settings of these listeners. Raises ConfigError for what cannot be served."""
        for listener in listeners:
            if listener.protocol.has_sasl:
                security = listener_security(self._config, listener.name)
                self._security[listener.name] = security
                self._mechanisms[listener.name] = {
                    name: self._mechanism(listener, name)
                    for name in security.sasl_enabled_mechanisms
                }

    def mechanisms(self) -> Iterable[Mechanism]:
        """Return the mechanisms of all listeners."""
        return chain.from_iterable(each.values() for each in self._mechanisms.values())

    def session(self, listener: Listener) -> Session:
        """Return the state of a connection that was just accepted."""
        mechanisms = self._mechanisms.get(listener.name)
        if mechanisms is None:
            return Session()
        return Session(mechanisms, self.security(listener).sasl_server_max_receive_size)

    def security(self, listener: Listener) -> SecurityConfig:
        """Return the settings of a listener with SASL."""
        return self._security[listener.name]

    def _mechanism(self, listener: Listener, name: str) -> Mechanism:
        place = f"listener {listener.name}: sasl.enabled.mechanisms"
        if name not in MECHANISM_NAMES:
            raise ConfigError(
                f"{place}: {name} is not served. Name some of {', '.join(MECHANISM_NAMES)}."
            )
        security = listener_security(self._config, listener.name, name)
        if name in HASHES:
            begin = partial(self._begin_scram, ScramUsers(name, self.credentials, self._tokens))
            return Mechanism(name, begin, security.connections_max_reauth_ms)
        users = self._plain_users(listener, security)
        return Mechanism(name, partial(PlainExchange, users), security.connections_max_reauth_ms)

    def _begin_scram(self, users: ScramUsers) -> ScramExchange:
        return ScramExchange(users.mechanism, users, secrets.token_urlsafe(_NONCE_BYTES))

    def _plain_users(self, listener: Listener, security: SecurityConfig) -> dict[str, str]:
        name = f"listener.name.{listener.name.lower()}.plain.sasl.jaas.config"
        if security.sasl_jaas_config is None:
            raise ConfigError(
                f"{name} is missing: PLAIN takes its users from there, as"
                ' ...PlainLoginModule required user_NAME="PASSWORD";'
            )
        try:
            options = parse_jaas(security.sasl_jaas_config)
        except ValueError as mistake:
            raise ConfigError(f"{name} {mistake}") from None
        return {
            option.removeprefix(_USER_OPTION): value
            for option, value in options.items()
            if option.startswith(_USER_OPTION)
        }
