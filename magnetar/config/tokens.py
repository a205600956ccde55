"""The settings of delegation tokens (KIP-48)."""

from __future__ import annotations

from magnetar.config.security import password
from magnetar.config.setting import Config, long


class TokensConfig(Config):
    """Whether there are tokens, and how long they live."""

    delegation_token_secret_key = password(
        since="1.1",
        doc="The secret that the passwords of delegation tokens are made from. Without it there"
        " are no tokens. A different secret ends all tokens that were given.",
    )
    delegation_token_max_lifetime_ms = long(
        7 * 24 * 3600 * 1000,
        minimum=1,
        since="1.1",
        doc="How long a token can be renewed after it was made.",
    )
    delegation_token_expiry_time_ms = long(
        24 * 3600 * 1000,
        minimum=1,
        since="1.1",
        doc="How long a token is good before it must be renewed.",
    )
    delegation_token_expiry_check_interval_ms = long(
        3600 * 1000,
        minimum=1,
        since="1.1",
        doc="How often tokens that have expired are removed. They let no client in before that"
        " either.",
    )


#: The settings of this file, which a broker has besides its own.
TOKEN_SETTINGS = TokensConfig.settings
