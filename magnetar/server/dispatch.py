"""From a frame to an answer: header, table of APIs, body, handler, response.

The edge of the broker: whatever a handler raises ends here. `KafkaError` is an answer, `WireError`
closes the connection, a failing disk or a broken invariant stops the broker, anything else is a
bug that is logged with its traceback and answered UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any

from magnetar.apis.error_responses import error_response
from magnetar.apis.registry import Api
from magnetar.clock import Clock
from magnetar.logging import get_logger
from magnetar.runtime.failing import is_fatal
from magnetar.runtime.request_context import Connection, RequestContext
from magnetar.runtime.services import Services
from magnetar.server.frames import SIZE_BYTES
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import Buffer, Message
from wire.messages.header import RequestHeader

API_VERSIONS = 18

#: Refusals that belong to the ordinary course of a protocol; they are logged as retriable ones are.
_ROUTINE = frozenset(
    {
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)

_HEADER = Struct(">hhih")
#: Size and correlation id, by the version of the response header; version 1 ends with no tags.
_PREFIXES = (Struct(">ii"), Struct(">iix"))
#: Responses shorter than this are joined into one buffer.
_JOIN_BYTES_MAX = 16 * 1024

_log = get_logger("server")


class UnsupportedVersion(WireError):
    """An API, or a version of it, that is not served."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"API key {api_key} version {version} is not served")
        self.api_key = api_key
        self.correlation_id = correlation_id


#: A decoded request, between the table's entry for it and what came with it. A plain tuple: one is
#: made for each request.
Call = tuple[Api, Message, RequestContext]
#: The buffers of an answer; empty where none is to be sent.
Answer = list[Buffer]


class Dispatcher:
    """Decodes and runs the requests of all connections."""

    #: What handlers work with; set before the first connection is accepted.
    services: Services

    def __init__(
        self,
        clock: Clock,
        apis: Mapping[int, Api],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._apis = apis
        self._on_fatal = on_fatal
        self._now_ms = clock.now_ms
        #: Requests that were understood, by API key.
        self.request_counts = dict.fromkeys(apis, 0)

    def decode(self, frame: bytearray, connection: Connection, client_address: str) -> Call:
        """Return the request that `frame` holds; its records are views of the frame.

        Raises WireError, of which UnsupportedVersion is a kind.
        """
        try:
            api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        except StructError:
            raise WireError(f"{len(frame)} bytes are no request header") from None
        api = self._apis.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            raise UnsupportedVersion(api_key, version, correlation_id)
        request_class = api.request_class
        flexible_since = request_class.flexible_since
        offset = 10 + length
        flexible = flexible_since is not None and version >= flexible_since
        if length < 0 or offset >= len(frame) or (flexible and frame[offset]):
            header, offset = RequestHeader.decode_from(frame, 2 if flexible else 1)
            client_id = header.client_id
        else:
            try:
                client_id = frame[10:offset].decode()
            except UnicodeDecodeError:
                raise WireError("the client id is not UTF-8") from None
            offset += flexible
        # Bytes that follow are left alone, as in Kafka: librdkafka 2.16 sends three of them after
        # a Metadata request of version 13.
        request, _ = request_class.decode_from(frame, version, offset)
        context = RequestContext(
            api_key, version, correlation_id, client_id, client_address, self._now_ms(), connection
        )
        self.request_counts[api_key] += 1
        return api, request, context

    async def answer(self, call: Call) -> Answer:
        """Run the handler and return the buffers of its answer. Raises WireError."""
        api, request, context = call
        try:
            response: Message | None = await api.handler(self.services, request, context)
            if response is None:
                return []
            return encode_response(response, context.version, context.correlation_id)
        except KafkaError as refusal:
            is_routine = refusal.code.retriable or refusal.code in _ROUTINE
            write = _log.debug if is_routine else _log.info
            write("request refused", **describe(call), error=str(refusal))
            return self._refuse(call, refusal)
        except WireError:
            raise
        except Exception as error:  # the one place: a bug must not take the others along
            if is_fatal(error):
                self._on_fatal(error)
                return []
            _log.exception("handler failed", **describe(call))
            return self._refuse(call, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _refuse(self, call: Call, refusal: KafkaError) -> Answer:
        api, request, context = call
        response = error_response(request, context.version, api.response_class, refusal)
        if response is None:
            return []
        return encode_response(response, context.version, context.correlation_id)


def encode_response(response: Message, version: int, correlation_id: int) -> Answer:
    """Return size, response header and body, in buffers none of which is empty; large parts are
    not copied.

    Raises TypeError for what cannot be sent: a bug.
    """
    try:
        parts = response.encode_parts(version)
    except WireError as error:
        raise TypeError(f"{type(response).__name__} cannot be sent: {error}") from error
    header_version = response.header_version(version)
    prefix_struct = _PREFIXES[header_version]
    size = prefix_struct.size - SIZE_BYTES
    for part in parts:
        size += len(part)
    prefix = prefix_struct.pack(size, correlation_id)
    if size <= _JOIN_BYTES_MAX:
        return [b"".join((prefix, *parts))]
    return [prefix, *filter(len, parts)]


def describe(call: Call) -> dict[str, Any]:
    """Return the fields by which a log line names a request."""
    api, _, context = call
    return {
        "api": api.name,
        "version": context.version,
        "client_id": context.client_id,
        "client_address": context.client_address,
    }
