"""SaslHandshake (API key 17): choose a mechanism to authenticate by (KIP-43).

Versions 0-1.  1: SaslAuthenticate follows, not bare tokens (KIP-152).

A listener without SASL answers ILLEGAL_SASL_STATE, so that a client that is set up for SASL learns
its mistake: had its connection been closed, it would try for ever. An unknown mechanism is answered
with those that are served, and the connection is closed.
"""

from __future__ import annotations

from magnetar.apis.refusals import log_refused_request
from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, versions="0-1")
def sasl_handshake(
    services: Services, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    session = context.connection.session
    response = SaslHandshakeResponse(mechanisms=session.mechanism_names)
    try:
        session.handshake(request.mechanism, context.version, services.clock.steady_ms())
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise
        log_refused_request(services, context, request, refusal)
        response.error_code = refusal.code
        context.connection.close()
    return response
