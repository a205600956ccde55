"""DescribeDelegationToken (API key 41): the tokens that a client may see (KIP-48).

Versions 1-3.  2: flexible.  3: who asked for each of them (KIP-373).

An owner and the renewers see theirs, with the HMACs that prove them. Another client needs DESCRIBE
on the token, or DESCRIBE_TOKENS on its owner; what it may not see is left out. The owners of a
request stand for renewers too; an empty list finds no token. The client must have logged in, and
not by a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from __future__ import annotations

from magnetar.apis.authorization import may
from magnetar.apis.delegation_tokens import tokens_of
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.security.principal import Principal
from magnetar.security.tokens import Token
from wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

_REQUESTER_SINCE = 3


@handles(DescribeDelegationTokenRequest, versions="1-3")
async def describe_delegation_token(
    services: Services, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    tokens = tokens_of(services, context)
    owners = None
    if request.owners is not None:
        owners = {Principal(each.principal_type, each.principal_name) for each in request.owners}
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, tokens.hmac(token), context.version)
            async for token in services.turns.each(tokens.all())
            if (owners is None or token.is_for_any(owners)) and _may_see(services, context, token)
        ]
    )


def _may_see(services: Services, context: RequestContext, token: Token) -> bool:
    return (
        token.is_for(context.principal)
        or may(services, context, Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.id)
        or may(services, context, Operation.DESCRIBE_TOKENS, Resource.USER, str(token.owner))
    )


def _described(token: Token, hmac: bytes, version: int) -> DescribedDelegationToken:
    described = DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.id,
        hmac=hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each.type, principal_name=each.name)
            for each in token.renewers
        ],
    )
    if version >= _REQUESTER_SINCE:
        described.token_requester_principal_type = token.requester.type
        described.token_requester_principal_name = token.requester.name
    return described
