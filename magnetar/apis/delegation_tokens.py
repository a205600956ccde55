"""What the requests about delegation tokens have in common (KIP-48)."""

from __future__ import annotations

from magnetar.config.security import SecurityProtocol
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.principal import ANONYMOUS
from magnetar.storage.delegation_tokens import DelegationTokens
from wire.error_code import ErrorCode
from wire.errors import KafkaError


def tokens_of(services: Services, context: RequestContext) -> DelegationTokens:
    """Return the tokens of the broker.

    Raises DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for a client that has proven nothing of its own, and
    DELEGATION_TOKEN_AUTH_DISABLED where the broker has no secret for tokens.
    """
    protocol = context.connection.listener.protocol
    is_anonymous = protocol is SecurityProtocol.SSL and context.principal == ANONYMOUS
    # Else a token could make tokens, and be renewed for ever by those that it was given to.
    is_token = context.connection.session.is_token
    if is_token or is_anonymous or protocol is SecurityProtocol.PLAINTEXT:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "tokens are for clients that have logged in by a certificate, or by SASL without a"
            " token",
        )
    if services.tokens is None:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set"
        )
    return services.tokens
