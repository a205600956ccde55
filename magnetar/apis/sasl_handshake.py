"""SaslHandshake (API key 17): choose a way to authenticate, of which there is none (KIP-43).

Versions 0-1.  1: SaslAuthenticate follows, not bare tokens (KIP-152).

ILLEGAL_SASL_STATE and no mechanism, as from a PLAINTEXT listener of Kafka. A client that is set up
for SASL learns its mistake by it: had its connection been closed, it would try for ever.
"""

from __future__ import annotations

from magnetar.apis.registry import handles
from magnetar.runtime.request_context import RequestContext
from magnetar.runtime.services import Services
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, versions="0-1")
async def sasl_handshake(
    services: Services, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SASL is not served here")
