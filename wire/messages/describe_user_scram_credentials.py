"""DescribeUserScramCredentials (API key 50): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int8, int16, int32


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    users: list[UserName] | None = []


class UserName(Struct):
    name: str = ""


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []


class DescribeUserScramCredentialsResult(Struct):
    user: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []


class CredentialInfo(Struct):
    mechanism: int8 = 0
    iterations: int32 = 0
