"""CreateDelegationToken (API key 38): make a password for a time, to hand on to others (KIP-48).

Versions 1-3.  2: flexible.  3: for another owner (KIP-373).

A token for another user needs CREATE_TOKENS on that user. The client must have logged in, and not
by a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. KIP-48, KIP-373.
"""

from __future__ import annotations

import uuid
from typing import Any

from magnetar.apis.authorization import require
from magnetar.apis.delegation_tokens import tokens_of
from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from magnetar.security.acls import Operation, Resource
from magnetar.security.principal import Principal
from magnetar.security.tokens import Token, issue
from wire.errors import KafkaError
from wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from wire.types import uuid_text

_REQUESTER_SINCE = 3


@handles(CreateDelegationTokenRequest, versions="1-3", changes_catalog=True)
async def create_delegation_token(
    services: Services, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    requester = context.principal
    owner = requester
    if context.version >= _REQUESTER_SINCE and request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        **_requester(requester, context.version),
    )
    try:
        token = _create(services, request, context, owner)
    except KafkaError as refusal:
        # Here, since the answer names the owner, whatever becomes of the request.
        log_refused_request(services, context, request, refusal)
        response.error_code = refusal.code
        return response
    assert services.tokens is not None, "it has made one"
    response.token_id, response.hmac = token.id, services.tokens.hmac(token)
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.ends_ms
    return response


def _create(
    services: Services,
    request: CreateDelegationTokenRequest,
    context: RequestContext,
    owner: Principal,
) -> Token:
    tokens = tokens_of(services, context)
    if owner != context.principal:
        require(services, context, Operation.CREATE_TOKENS, Resource.USER, str(owner))
    token = issue(
        uuid_text(uuid.uuid4()),
        owner,
        context.principal,
        tuple(Principal(each.principal_type, each.principal_name) for each in request.renewers),
        request.max_lifetime_ms,
        context.now_ms,
        tokens.lifetimes,
    )
    tokens.put(token)
    return token


def _requester(requester: Principal, version: int) -> dict[str, Any]:
    if version < _REQUESTER_SINCE:
        return {}
    return {
        "token_requester_principal_type": requester.type,
        "token_requester_principal_name": requester.name,
    }
