"""SaslAuthenticate (API key 36): one token of a login, and the answer to it (KIP-152).

Versions 0-2.  1: how long the session lasts (KIP-368).  2: flexible.

A failed login is answered SASL_AUTHENTICATION_FAILED after a delay
(`connection.failed.authentication.delay.ms`), and the connection is closed. The words are the same
for an unknown user and a wrong password. A refused token of OAUTHBEARER is answered with its status
first, and fails when the client has acknowledged that.
"""

from __future__ import annotations

import asyncio

from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(SaslAuthenticateRequest, versions="0-2")
async def sasl_authenticate(
    services: Services, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    connection = context.connection
    session = connection.session
    try:
        answer, lifetime_ms = session.authenticate(
            request.auth_bytes, context.now_ms, services.clock.steady_ms()
        )
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise
        if not session.failure:
            log_refused_request(services, context, request, refusal)
        security = services.authentication.security(connection.listener)
        await asyncio.sleep(security.connection_failed_authentication_delay_ms / 1000)
        connection.close()
        return SaslAuthenticateResponse(error_code=refusal.code, error_message=refusal.detail)
    if session.failure:
        # The client is told less, and may go without another word: this is the one line.
        failure = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, session.failure)
        log_refused_request(services, context, request, failure)
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
    )
