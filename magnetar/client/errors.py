"""What goes wrong between a client and a broker, each with a message for a person."""

from __future__ import annotations

from wire.error_code import ErrorCode


class ClientError(Exception):
    """A request failed; the message is for a person."""


class NotFound(ClientError):
    """What a question names is not there."""


class Unreachable(ClientError):
    """A broker cannot be connected to, or its response did not come. It may be back later."""

    #: The broker, where its id is known.
    node_id: int | None = None


class Silent(Unreachable):
    """A broker is connected, and its response did not come in time."""


class NotLetIn(ClientError):
    """Broker and client did not come to trust each other: TLS or SASL failed."""


class Refused(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = code_of(code)
        name = self.code.name if self.code == code else f"error code {code}, of a later release"
        explanation = f" ({message.rstrip('.')})" if message else ""
        super().__init__(f"{what}: {name}{explanation}")


def code_of(code: int) -> ErrorCode:
    """Return an error code; UNKNOWN_SERVER_ERROR for one of a later release, as Kafka's clients."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise Refused unless `code` is NONE; `message` is the broker's explanation."""
    if code != ErrorCode.NONE:
        raise Refused(code, what, message)
