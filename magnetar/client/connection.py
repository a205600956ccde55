"""One connection to one broker: TLS, login, versions, requests and their responses.

Not here: which broker a request belongs to (`cluster`), and what responses mean. Nothing is
retried.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import time
from struct import Struct
from typing import TypeVar

from magnetar.client.errors import ClientError, NotLetIn, Silent, Unreachable, check
from magnetar.client.login import HASHES, Login, NotTheBroker, oauthbearer, plain, scram
from magnetar.client.security import PLAINTEXT, Security
from wire.api import API_NAMES
from wire.error_code import ErrorCode
from wire.errors import WireError
from wire.message import Message
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.header import RequestHeader, ResponseHeader
from wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

#: What brokers log and count this client as, unless its user says otherwise.
CLIENT_ID = "magnetar"
#: No response to this client is larger. A peer that announces more speaks another protocol.
RESPONSE_BYTES_MAX = 256 << 20
_RECEIVE_BYTES = 1 << 20
_CORRELATION_ID_BYTES = 4
_SIZE = Struct(">i")
_NONCE_BYTES = 24
#: SaslAuthenticate requests, not bare tokens, follow SaslHandshake from this version on (KIP-152).
_HANDSHAKE_VERSION = 1
#: A login that ends is renewed after this share of its time, as in Kafka's clients (KIP-368).
_RENEWED_AFTER = 0.85
#: The first bytes of an alert, with which TLS refuses what is none of it.
_TLS_ALERT = b"\x15\x03"
_NAME_ERRORS = (62, 64)

R = TypeVar("R", bound=Message)
Address = tuple[str, int]


class Connection:
    """One connection to one broker; `call` sends a request and returns the response."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        client_id: str = CLIENT_ID,
        security: Security = PLAINTEXT,
    ) -> None:
        """Connect, log in and learn the broker's versions.

        ClientError: no broker of Kafka's protocol. NotLetIn: TLS or the login failed.
        """
        self.address = address
        #: Whether every request so far got its response. If not, the next response on this
        #: connection would be that of an earlier request.
        self._is_in_step = True
        self._name = f"{address[0]}:{address[1]}"
        #: Bounds the wait for each single response.
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._security = security
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        #: When to log in again, by the monotonic clock.
        self._login_due: float | None = None
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise Unreachable(
                f"cannot reach a broker at {self._name}: {error.strerror or error}. Is it running?"
            ) from None
        try:
            if security.has_tls:
                self._begin_tls(security.context())
            # Every broker can answer version 0 of this request.
            response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
            # A version that is too new for the broker is answered in version 0 as well (KIP-511),
            # so this list is there even when nothing else is shared.
            self._versions = {
                api.api_key: (api.min_version, api.max_version) for api in response.api_keys
            }
            if security.has_sasl:
                self._log_in()
        except ClientError:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether the next request can be sent. The broker may have ended since the last one."""
        if not self._is_in_step:
            return False
        # A broker says nothing unasked: what can be read now is the end of the connection.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def serves(self, request_class: type[Message]) -> bool:
        """Return whether broker and client share a version of this request."""
        lowest, highest = self._versions.get(request_class.api_key, (0, -1))
        return max(lowest, request_class.min_version) <= min(highest, request_class.max_version)

    def version_for(
        self, request_class: type[Message], *, at_least: int = 0, at_most: int | None = None
    ) -> int:
        """Return the highest version that both sides speak. ClientError: none within the bounds."""
        key = request_class.api_key
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, request_class.max_version)
        if at_most is not None:
            version = min(version, at_most)
        if version < max(lowest, request_class.min_version, at_least):
            wanted = f"{API_NAMES[key]} version {at_least}" if at_least else API_NAMES[key]
            raise ClientError(f"the broker at {self._name} does not serve {wanted}.")
        return version

    def call(
        self,
        request: Message,
        response_class: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        extra_wait_s: float = 0.0,
    ) -> R:
        """Return the response to `request`, sent in the highest version that both sides speak.

        `extra_wait_s` is added to the timeout, for requests that other clients may hold up.
        """
        if self._login_due is not None and time.monotonic() > self._login_due:
            self._log_in()
        version = self.version_for(type(request), at_least=at_least, at_most=at_most)
        return self._exchange(request, response_class, version, extra_wait_s)

    def close(self) -> None:
        self._is_in_step = False
        self._socket.close()

    def _begin_tls(self, context: ssl.SSLContext) -> None:
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address[0])
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _NAME_ERRORS:
                advice = "ssl.endpoint.identification.algorithm=none does not check the name."
            else:
                advice = "ssl.truststore.location names a PEM file with its authority."
            raise NotLetIn(
                f"the certificate of {self._name} is not trusted: {error.verify_message}. {advice}"
            ) from None
        except TimeoutError:
            raise Silent(
                f"{self._name} did not answer within {self.timeout_s:g} s. Does it speak TLS?"
            ) from None
        except OSError as error:
            raise NotLetIn(
                f"{self._name} does not speak TLS with this client ({_reason(error)})."
                " Is security.protocol that of the listener?"
            ) from None

    def _log_in(self) -> None:
        """Prove who the client is. NotLetIn: the broker refuses, or cannot prove itself."""
        self._login_due = None
        security = self._security
        handshake = self._exchange(
            SaslHandshakeRequest(mechanism=security.mechanism),
            SaslHandshakeResponse,
            _HANDSHAKE_VERSION,
        )
        if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise NotLetIn(
                f"{self._name} does not serve sasl.mechanism {security.mechanism}: it serves"
                f" {', '.join(handshake.mechanisms) or 'none'}."
            )
        if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise NotLetIn(
                f"{self._name} has no SASL: security.protocol is PLAINTEXT or SSL there."
            )
        check(handshake.error_code, f"logging in at {self._name}")
        login = _login(security)
        version = self.version_for(SaslAuthenticateRequest)
        token = next(login)
        try:
            while True:
                answer = self._authenticate(token, version)
                token = login.send(answer.auth_bytes)
        except NotTheBroker as mistrust:
            raise NotLetIn(f"{self._name} is not trusted: {mistrust}.") from None
        except StopIteration:
            if answer.session_lifetime_ms > 0:
                lifetime_s = answer.session_lifetime_ms / 1000
                self._login_due = time.monotonic() + lifetime_s * _RENEWED_AFTER

    def _authenticate(self, token: bytes, version: int) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(auth_bytes=token)
        answer = self._exchange(request, SaslAuthenticateResponse, version)
        if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise NotLetIn(
                f"{self._name} refused the login of {self._security.username!r} by"
                f" {self._security.mechanism}: {(answer.error_message or 'no reason').rstrip('.')}."
                + (" The broker's log says why." if self._security.tokens else "")
            )
        check(answer.error_code, f"logging in at {self._name}", answer.error_message)
        return answer

    def _exchange(
        self, request: Message, response_class: type[R], version: int, extra_wait_s: float = 0.0
    ) -> R:
        deadline = time.monotonic() + self.timeout_s + extra_wait_s
        self._correlation_id += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        try:
            body = header.encode(request.header_version(version)) + request.encode(version)
        except WireError as error:
            raise ClientError(f"cannot ask the broker that: {error}") from None
        # Until the whole response has been read: an exception leaves the rest of it in the stream.
        self._is_in_step = False
        try:
            frame = self._exchange_frames(body, deadline)
            answered, start = ResponseHeader.decode_from(
                frame, response_class.header_version(version)
            )
            # Responses come in the order of requests, so another id means that the stream is out of
            # step.
            if answered.correlation_id != self._correlation_id:
                raise WireError(f"an answer to request {answered.correlation_id}")
            response = response_class.decode(memoryview(frame)[start:], version)
        except TimeoutError:
            raise Silent(
                f"{self._name} did not answer {API_NAMES[request.api_key]} within "
                f"{self.timeout_s + extra_wait_s:g} s."
            ) from None
        except ssl.SSLError as error:
            # TLS 1.3 tells only now that the broker did not like the client's certificate.
            raise NotLetIn(
                f"{self._name} ended TLS ({_reason(error)}). Does it want the client's certificate,"
                " ssl.keystore.location?"
            ) from None
        except OSError as error:
            raise Unreachable(f"{self._name}: {error.strerror or error}") from None
        except WireError as error:
            raise ClientError(f"{self._name} does not speak Kafka's protocol: {error}") from None
        self._is_in_step = True
        return response

    def _exchange_frames(self, body: bytes, deadline: float) -> bytes:
        """Send a request and return the next frame. Raises TimeoutError, OSError, WireError."""
        self._socket.settimeout(self.timeout_s)
        # One send: two would leave as two packets, and the second would wait for the
        # acknowledgement of the first (Nagle's algorithm).
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        size = self._receive(_SIZE.size, deadline)
        if size.startswith(_TLS_ALERT):
            raise WireError("it answers in TLS. security.protocol=SSL or SASL_SSL speaks it")
        (size_bytes,) = _SIZE.unpack(size)
        # Checked before anything is allocated: the peer may not be a broker.
        if not _CORRELATION_ID_BYTES <= size_bytes <= RESPONSE_BYTES_MAX:
            raise WireError(f"an answer of {size_bytes} bytes")
        return self._receive(size_bytes, deadline)

    def _receive(self, size_bytes: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            # A timeout of 0 would make the socket non-blocking, and its error another one.
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            # Bounded: the buffer is allocated before the bytes come.
            more = self._socket.recv(min(size_bytes - len(received), _RECEIVE_BYTES))
            if not more:
                raise ConnectionError(
                    "the connection was closed without an answer. "
                    f"Does the listener speak {self._security.protocol}, as this client does?"
                )
            received += more
        return bytes(received)


def _login(security: Security) -> Login:
    """Return a login by the mechanism of the settings. ClientError: there is no token."""
    if security.tokens is not None:
        return oauthbearer(security.tokens.token(), security.tokens.extensions)
    if security.mechanism in HASHES:
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return scram(security.mechanism, security.username, security.password, nonce)
    return plain(security.username, security.password)


def _reason(error: OSError) -> str:
    """Return what OpenSSL or the system says, without the place in OpenSSL's source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or error.strerror or str(error)).replace("_", " ").lower()
