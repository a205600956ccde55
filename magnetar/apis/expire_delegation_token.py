"""ExpireDelegationToken (API key 40): let a token be good for less long, or end it (KIP-48).

Versions 1-2.  2: flexible.

The owner and the renewers may. A time below 0 removes the token at once. Sessions that began by it
last until it would have expired, as in Kafka: they are ended by taking the owner's rights. The
client must have logged in, and not by a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from magnetar.apis.delegation_tokens import tokens_of
from magnetar.apis.mirror import mirror
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.tokens import expire
from wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


@handles(
    ExpireDelegationTokenRequest,
    versions="1-2",
    refuse=mirror(ExpireDelegationTokenResponse, expiry_timestamp_ms=-1),
    changes_catalog=True,
)
async def expire_delegation_token(
    services: Services, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    tokens = tokens_of(services, context)
    token = tokens.proven(bytes(request.hmac))
    period_ms = request.expiry_time_period_ms
    expired = expire(token, context.principal, period_ms, context.now_ms)
    if expired is None:
        tokens.remove([token])
        return ExpireDelegationTokenResponse(expiry_timestamp_ms=period_ms)
    tokens.put(expired)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expired.expires_ms)
