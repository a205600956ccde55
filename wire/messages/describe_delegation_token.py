"""DescribeDelegationToken (API key 41): versions 1-3.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int16, int32, int64


class DescribeDelegationTokenRequest(Message, api_key=41, versions="1-3", flexible="2+"):
    owners: list[DescribeDelegationTokenOwner] | None = []


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = ""
    principal_name: str = ""


class DescribeDelegationTokenResponse(Message, api_key=41, versions="1-3", flexible="2+"):
    error_code: int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: int32 = 0


class DescribedDelegationToken(Struct):
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = in_versions("3+")
    token_requester_principal_name: str = in_versions("3+")
    issue_timestamp: int64 = 0
    expiry_timestamp: int64 = 0
    max_timestamp: int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = ""
    principal_name: str = ""
