"""RenewDelegationToken (API key 39): let a token be good for longer (KIP-48).

Versions 1-2.  2: flexible.

The owner and the renewers may, until the token's end. The client must have logged in, and not by a
token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from magnetar.apis.delegation_tokens import tokens_of
from magnetar.apis.mirror import mirror
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.tokens import renew
from wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


@handles(
    RenewDelegationTokenRequest,
    versions="1-2",
    refuse=mirror(RenewDelegationTokenResponse, expiry_timestamp_ms=-1),
    changes_catalog=True,
)
async def renew_delegation_token(
    services: Services, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    tokens = tokens_of(services, context)
    token = tokens.proven(bytes(request.hmac))
    period_ms = request.renew_period_ms
    renewed = renew(token, context.principal, period_ms, context.now_ms, tokens.lifetimes)
    tokens.put(renewed)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=renewed.expires_ms)
