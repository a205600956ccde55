"""Keys and values on their way to a page: through their schema if they name one, else as bytes."""

from __future__ import annotations

from magnetar.console.payload import Payload, payload


class Decoder:
    """Decodes the bytes of one page."""

    def __init__(self, registry: str | None) -> None:
        self._registry = registry

    def decode(self, data: bytes | None) -> Payload:
        """Return what a person reads."""
        return payload(data)
