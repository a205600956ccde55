"""SaslAuthenticate (API key 36): authenticate, for which there is no way (KIP-152).

Versions 0-2.  1: how long a session lasts (KIP-368).  2: flexible.

ILLEGAL_SASL_STATE, as from a PLAINTEXT listener of Kafka.
"""

from __future__ import annotations

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
    raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SASL is not served here")
