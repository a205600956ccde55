"""SaslHandshake (API key 17): versions 0-1.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, int16


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = ""


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int16 = 0
    mechanisms: list[str] = []
