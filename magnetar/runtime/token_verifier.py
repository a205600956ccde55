"""Which tokens a listener takes: its settings, made into rules and the keys of an issuer."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import partial

from magnetar.config.jaas import parse_jaas
from magnetar.config.load import ConfigError
from magnetar.config.oauthbearer import VALIDATORS, OAuthBearerConfig
from magnetar.endpoint import Endpoint, parse_endpoint, read_endpoint, trusting
from magnetar.logging import get_logger
from magnetar.runtime.jwks import Jwks, Pace
from magnetar.security.jwt import TokenRules, UnknownKey, verified
from magnetar.security.oauthbearer import OAUTHBEARER, TokenRefused
from magnetar.security.sasl import Identity

_URL = "sasl.oauthbearer.jwks.endpoint.url"
_ISSUER = "sasl.oauthbearer.expected.issuer"
_AUDIENCE = "sasl.oauthbearer.expected.audience"
_TRUSTSTORE = "ssl.truststore"

_log = get_logger("server")


class TokenVerifier:
    """The tokens of one listener. Raises ConfigError for settings that cannot be served."""

    def __init__(self, listener: str, settings: OAuthBearerConfig, jaas: str | None) -> None:
        """`jaas` may name the authorities that are trusted for the issuer's HTTPS."""
        place = f"listener {listener}: {OAUTHBEARER}"
        _check_validator(place, settings)
        endpoint = _endpoint(place, settings)
        context = _context(place, jaas, endpoint)
        pace = Pace(
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
        )
        expected = frozenset(settings.sasl_oauthbearer_expected_audience)
        takes_any = not expected and settings.sasl_oauthbearer_allow_unverified_audience
        self._rules = TokenRules(
            None if takes_any else expected,
            settings.sasl_oauthbearer_expected_issuer or None,
            settings.sasl_oauthbearer_clock_skew_seconds,
            settings.sasl_oauthbearer_scope_claim_name,
            settings.sasl_oauthbearer_sub_claim_name,
        )
        self._jwks = Jwks(listener, endpoint, partial(read_endpoint, endpoint, context), pace)
        self._listener = listener

    async def start(self) -> None:
        """Fetch the keys. Raises ConfigError for a file without any."""
        if self._rules.issuer is None:
            _log.warning(
                "tokens of any issuer are taken", listener=self._listener, advice=f"set {_ISSUER}"
            )
        if self._rules.audiences is None:
            _log.warning(
                "tokens for any audience are taken",
                listener=self._listener,
                advice=f"set {_AUDIENCE}",
            )
        await self._jwks.start()

    def stop(self) -> None:
        """Fetch no keys any more."""
        self._jwks.stop()

    def verify(self, token: str, now_ms: int) -> Identity:
        """Return the identity that the token names. Raises TokenRefused."""
        if self._jwks.keys is None:
            raise TokenRefused("there are no keys of tokens yet")
        try:
            return verified(token, self._jwks.keys, self._rules, now_ms)
        except UnknownKey:
            self._jwks.miss()
            raise


def _check_validator(place: str, settings: OAuthBearerConfig) -> None:
    """Refuse Kafka's other classes: what they would check is not checked here."""
    given = settings.sasl_oauthbearer_jwt_validator_class
    if given is not None and given not in VALIDATORS:
        raise ConfigError(
            f"{place}: sasl.oauthbearer.jwt.validator.class={given} cannot be loaded: name"
            f" {VALIDATORS[0]}."
        )


def _endpoint(place: str, settings: OAuthBearerConfig) -> Endpoint:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        raise ConfigError(
            f"{place}: {_URL} is missing. It says where the keys are that verify the tokens:"
            " unsigned ones are refused."
        )
    try:
        return parse_endpoint(url)
    except ValueError as mistake:
        raise ConfigError(f"{place}: {_URL} {mistake}.") from None


def _context(place: str, jaas: str | None, endpoint: Endpoint) -> Callable[[], ssl.SSLContext]:
    """Return what makes the context of HTTPS: by the JAAS entry's options, as in Kafka."""
    try:
        options = {} if jaas is None else parse_jaas(jaas)
    except ValueError as mistake:
        raise ConfigError(f"{place}: sasl.jaas.config {mistake}") from None
    if options.get(f"{_TRUSTSTORE}.type", "PEM") != "PEM":
        raise ConfigError(f"{place}: {_TRUSTSTORE}.type of its sasl.jaas.config has to be PEM.")

    def make() -> ssl.SSLContext:
        return _make_context(options)

    try:
        if not endpoint.is_file:
            make()
    except OSError as error:
        raise ConfigError(
            f"{place}: cannot use {_TRUSTSTORE}.location of its sasl.jaas.config:"
            f" {error.strerror or error}"
        ) from None
    return make


def _make_context(options: Mapping[str, str]) -> ssl.SSLContext:
    return trusting(
        cafile=options.get(f"{_TRUSTSTORE}.location"),
        cadata=options.get(f"{_TRUSTSTORE}.certificates"),
    )
