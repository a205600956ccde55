"""How clients of each listener authenticate: mechanisms, their users, and new sessions.

The rules of a login are in `magnetar.security`; here they meet the settings and the catalog.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from magnetar.config.broker import BrokerConfig
from magnetar.config.jaas import parse_jaas
from magnetar.config.listeners import Listener
from magnetar.config.load import ConfigError
from magnetar.config.oauthbearer import TOKEN_HANDLERS, OAuthBearerConfig
from magnetar.config.security import SecurityConfig, listener_security, listener_view
from magnetar.runtime.scram_users import ScramUsers
from magnetar.security.oauthbearer import OAUTHBEARER, OAuthBearerExchange
from magnetar.security.plain import PlainExchange
from magnetar.security.sasl import Mechanism, Mechanisms
from magnetar.security.scram import HASHES, ScramExchange
from magnetar.security.session import Session
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.scram_credentials import ScramCredentials

if TYPE_CHECKING:
    from magnetar.runtime.token_verifier import TokenVerifier

_NONCE_BYTES = 24
_USER_OPTION = "user_"
_HANDLER = "sasl.server.callback.handler.class"
#: Kafka's own handlers, which do what magnetar does.
_HANDLERS = {
    "PLAIN": ("org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler",),
    OAUTHBEARER: TOKEN_HANDLERS,
}
_SCRAM_HANDLERS = ("org.apache.kafka.common.security.scram.internals.ScramServerCallbackHandler",)
MECHANISM_NAMES = ("PLAIN", *HASHES, OAUTHBEARER)


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
        self._verifiers: list[TokenVerifier] = []

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

    async def start(self) -> None:
        """Fetch the keys that verify tokens. Raises ConfigError for a file without any."""
        for verifier in self._verifiers:
            await verifier.start()

    def stop(self) -> None:
        """Fetch nothing more."""
        for verifier in self._verifiers:
            verifier.stop()

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
        self._check_handler(listener, name)
        security = listener_security(self._config, listener.name, name)
        if name in HASHES:
            begin = partial(self._begin_scram, ScramUsers(name, self.credentials, self._tokens))
            return Mechanism(name, begin, security.connections_max_reauth_ms)
        if name == OAUTHBEARER:
            return self._oauthbearer(listener, security)
        users = self._plain_users(listener, security)
        return Mechanism(name, partial(PlainExchange, users), security.connections_max_reauth_ms)

    def _begin_scram(self, users: ScramUsers) -> ScramExchange:
        return ScramExchange(users.mechanism, users, secrets.token_urlsafe(_NONCE_BYTES))

    def _check_handler(self, listener: Listener, mechanism: str) -> None:
        """Refuse a class that would look users up elsewhere.

        Kafka reads the setting only with the prefix of a listener and a mechanism.
        """
        name = f"listener.name.{listener.name.lower()}.{mechanism.lower()}.{_HANDLER}"
        known = _HANDLERS.get(mechanism, _SCRAM_HANDLERS)
        if name in self._config.explicit and self._config[name] not in (None, *known):
            raise ConfigError(
                f"{name}={self._config[name]} cannot be loaded: leave it out, or name {known[0]}."
            )

    def _oauthbearer(self, listener: Listener, security: SecurityConfig) -> Mechanism:
        try:
            # Imported where it is wanted: its libraries take a third of a second of a start.
            from magnetar.runtime.token_verifier import TokenVerifier
        except ImportError as missing:
            raise ConfigError(
                f"{OAUTHBEARER} needs {missing.name}: pip install 'magnetar[security]'"
            ) from None
        tokens = listener_view(self._config, OAuthBearerConfig, listener.name, OAUTHBEARER)
        verifier = TokenVerifier(listener.name, tokens, security.sasl_jaas_config)
        self._verifiers.append(verifier)
        begin = partial(OAuthBearerExchange, verifier.verify)
        return Mechanism(OAUTHBEARER, begin, security.connections_max_reauth_ms)

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
