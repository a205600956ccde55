"""CreateDelegationToken (API key 38): versions 1-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class CreateDelegationTokenRequest(Message, api_key=38, versions="1-3", flexible="2+"):
    owner_principal_type: str | None = in_versions("3+")
    owner_principal_name: str | None = in_versions("3+")
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: int64 = 0


class CreatableRenewers(Struct):
    principal_type: str = ""
    principal_name: str = ""


class CreateDelegationTokenResponse(Message, api_key=38, versions="1-3", flexible="2+"):
    error_code: int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = in_versions("3+")
    token_requester_principal_name: str = in_versions("3+")
    issue_timestamp_ms: int64 = 0
    expiry_timestamp_ms: int64 = 0
    max_timestamp_ms: int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int32 = 0
