"""The settings of OAUTHBEARER on a listener (KIP-768): which tokens are taken, and whose keys.

Given for all listeners, for one (`listener.name.LISTENER.NAME`), or for its mechanism
(`listener.name.LISTENER.oauthbearer.NAME`).
"""

from __future__ import annotations

from magnetar.config.setting import (
    Config,
    ConfigType,
    Setting,
    boolean,
    empty_words,
    integer,
    long,
    optional_string,
    string,
)

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
#: Kafka's classes that do what magnetar does: they may be named, and nothing else.
TOKEN_HANDLERS = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
VALIDATORS = (f"{_PACKAGE}.DefaultJwtValidator", f"{_PACKAGE}.BrokerJwtValidator")


def _class_name(text: str) -> str | None:
    return text.strip() or None


class OAuthBearerConfig(Config):
    """What a token must say, and where the keys are that prove it."""

    sasl_oauthbearer_jwks_endpoint_url = optional_string(
        since="3.1",
        doc="Where the issuer's public keys are (JWKS): https:, file:, or http: on this machine.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = long(
        3600000,
        minimum=1,
        since="3.1",
        doc="How often the keys are fetched. A file is looked at every ten seconds.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = long(
        100, minimum=0, since="3.1", doc="The pause after the first fetch that fails; it doubles."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = long(
        10000, minimum=0, since="3.1", doc="The longest pause between two tries."
    )
    sasl_oauthbearer_expected_audience = empty_words(
        since="3.1",
        doc="Audiences, of which a token must name one. Unset: a token that names one is refused.",
    )
    sasl_oauthbearer_expected_issuer = optional_string(
        since="3.1", doc="The issuer that a token must name. Unset: any, with a warning."
    )
    sasl_oauthbearer_allow_unverified_audience = boolean(
        False,
        since="4.4",
        doc="Where no audience is expected: take tokens for any, with a warning.",
    )
    sasl_oauthbearer_allow_unverified_issuer = boolean(
        False,
        since="4.4",
        doc="Where no issuer is expected, tokens of any are taken in any case.",
        acts=False,
    )
    sasl_oauthbearer_clock_skew_seconds = integer(
        30, minimum=0, since="3.1", doc="How far the clocks of issuer and broker may differ."
    )
    sasl_oauthbearer_scope_claim_name = string(
        "scope", since="3.1", doc="The claim with the scope: its form is checked, nothing else."
    )
    sasl_oauthbearer_sub_claim_name = string(
        "sub", since="3.1", doc="The claim that names the user."
    )
    sasl_oauthbearer_jwt_validator_class: Setting[str | None] = Setting(
        ConfigType.CLASS,
        _class_name,
        VALIDATORS[0],
        doc="Kafka's class that checks tokens: its default, or BrokerJwtValidator.",
        since="4.1",
    )
    sasl_server_callback_handler_class: Setting[str | None] = Setting(
        ConfigType.CLASS,
        _class_name,
        None,
        doc="Given for a mechanism of a listener. Of OAUTHBEARER: Kafka's"
        " OAuthBearerValidatorCallbackHandler, or unset, which means the same here (in Kafka it"
        " takes unsigned tokens). Other classes are refused.",
        since="2.0",
    )
