"""AlterUserScramCredentials (API key 51): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, int8, int16, int32


class AlterUserScramCredentialsRequest(Message, api_key=51, versions="0", flexible="0+"):
    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class ScramCredentialDeletion(Struct):
    name: str = ""
    mechanism: int8 = 0


class ScramCredentialUpsertion(Struct):
    name: str = ""
    mechanism: int8 = 0
    iterations: int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0", flexible="0+"):
    throttle_time_ms: int32 = 0
    results: list[AlterUserScramCredentialsResult] = []


class AlterUserScramCredentialsResult(Struct):
    user: str = ""
    error_code: int16 = 0
    error_message: str | None = ""
