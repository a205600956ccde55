"""The login of one connection: which requests it may send, and who sends them.

A connection of a listener without SASL is open from its first byte. With SASL it goes
INITIAL -> HANDSHAKE -> AUTHENTICATE (or TOKENS) -> OPEN; any step out of order is refused, and the
connection closed. Where logins have an end, an open connection may begin another login before that
(KIP-368). Source: Kafka's SaslServerAuthenticator; KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from enum import Enum, auto

from magnetar.security.principal import ANONYMOUS, Principal
from magnetar.security.sasl import AuthenticationFailed, Mechanism, Mechanisms, SaslExchange
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
#: An open connection may begin another login so long after it began the last one.
REAUTHENTICATION_INTERVAL_MS = 1_000


#: What Kafka calls the library of a client that has not named it.
UNKNOWN = "unknown"


class _State(Enum):
    INITIAL = auto()
    #: ApiVersions was answered.
    HANDSHAKE = auto()
    #: SaslAuthenticate requests follow.
    AUTHENTICATE = auto()
    #: Bare tokens follow, each a frame without a header.
    TOKENS = auto()
    OPEN = auto()


#: The requests that a connection may send which has not authenticated, by its state.
_EXPECTED = {
    _State.INITIAL: (_API_VERSIONS, _SASL_HANDSHAKE),
    _State.HANDSHAKE: (_SASL_HANDSHAKE,),
    _State.AUTHENTICATE: (_SASL_AUTHENTICATE,),
    _State.TOKENS: (),
}


class Session:
    """The state of one connection's login. `is_guarded`: each request must pass `admit` first."""

    def __init__(self, mechanisms: Mechanisms | None = None, frame_bytes_max: int = 0) -> None:
        """`mechanisms` are the listener's; None for a listener without SASL.

        `frame_bytes_max` is the largest request until the session is open.
        """
        self._frame_bytes_max = frame_bytes_max
        #: Name and version of the client's library, by ApiVersions (KIP-511).
        self.software = (UNKNOWN, UNKNOWN)
        self.principal: Principal = ANONYMOUS
        self.mechanism: str | None = None
        #: Whether the client has logged in by a delegation token.
        self.is_token = False
        self.is_guarded = mechanisms is not None
        self._mechanisms: Mechanisms = mechanisms or {}
        self._state = _State.OPEN if mechanisms is None else _State.INITIAL
        self._login: SaslExchange | None = None
        self._chosen: Mechanism | None = None
        #: By the steady clock, as in Kafka: one that is set ends no session, and prolongs none.
        self._expires_at_ms: int | None = None
        #: When the open connection has last begun another login.
        self._began_again_at_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the client has proven who it is, or need not."""
        return not self._mechanisms or self.mechanism is not None

    def limit_frames(self, bytes_max: int) -> int:
        """Return the largest request that the client may send, `bytes_max` once it is open."""
        return bytes_max if self.is_open else min(bytes_max, self._frame_bytes_max)

    @property
    def takes_tokens(self) -> bool:
        """Whether the next frame is a bare token and no request (SaslHandshake version 0)."""
        return self._state is _State.TOKENS

    def admit(self, api_key: int, steady_ms: int) -> None:
        """Let a request pass. Raises WireError for one that closes the connection."""
        if self.mechanism is not None:
            is_late = self._expires_at_ms is not None and steady_ms >= self._expires_at_ms
            if is_late and api_key not in (_SASL_HANDSHAKE, _SASL_AUTHENTICATE):
                raise WireError("the session has ended: the client did not authenticate again")
            return
        if api_key not in _EXPECTED[self._state]:
            raise WireError(f"a request of API key {api_key} before authentication")
        if api_key == _API_VERSIONS:
            self._state = _State.HANDSHAKE

    def expect_versions(self) -> None:
        """Let the client ask for ApiVersions again: the version that it used is not served."""
        if self._state is _State.HANDSHAKE:
            self._state = _State.INITIAL

    def handshake(self, mechanism: str, version: int, steady_ms: int) -> None:
        """Begin a login.

        Raises UNSUPPORTED_SASL_MECHANISM, and ILLEGAL_SASL_STATE where none may begin.
        """
        if not self._mechanisms:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "this listener does not serve SASL")
        if self.mechanism is not None:
            if self._expires_at_ms is None:
                raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "this session has no end")
            # As in Kafka, the first may begin at once: a token may have less than a second left.
            before_ms = self._began_again_at_ms
            if before_ms is not None and steady_ms - before_ms < REAUTHENTICATION_INTERVAL_MS:
                raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "began a login less than 1 s ago")
            self._began_again_at_ms = steady_ms
            if mechanism != self.mechanism:
                again = mechanism[:64]
                raise WireError(f"a new login by {again}, not by {self.mechanism} as before")
        chosen = self._mechanisms.get(mechanism)
        if chosen is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {mechanism[:64]} is not enabled"
            )
        self._chosen = chosen
        self._login = chosen.begin()
        self._state = _State.TOKENS if version == 0 else _State.AUTHENTICATE

    def authenticate(self, token: bytes, now_ms: int, steady_ms: int) -> tuple[bytes, int]:
        """Return the answer to a token, and how many ms the session will last; 0: without an end.

        `now_ms` is the wall clock's time, which tokens go by.

        Raises SASL_AUTHENTICATION_FAILED, after which the connection must be closed, and
        ILLEGAL_SASL_STATE where no login was begun.
        """
        if self._login is None or self._chosen is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        try:
            answer = self._login.step(token, now_ms)
        except AuthenticationFailed as failed:
            # A failure that the client was answered after was counted then.
            self._chosen.logins.failed += not self._login.failure
            # The connection is about to be closed: what arrives until then is no part of a login.
            self._chosen = None
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(failed)) from None
        identity = self._login.identity
        if identity is None:
            self._chosen.logins.failed += bool(self._login.failure)
            return answer, 0
        if self.mechanism is not None and identity.principal != self.principal:
            self._chosen.logins.failed += 1
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"Cannot change principals during re-authentication from {self.principal}:"
                f" {identity.principal}",
            )
        lifetimes_ms = [
            ms
            for ms in (
                self._chosen.session_ms_max,
                0 if identity.expires_at_ms is None else max(1, identity.expires_at_ms - now_ms),
            )
            if ms > 0
        ]
        lifetime_ms = min(lifetimes_ms, default=0)
        self.principal, self.mechanism = identity.principal, self._chosen.name
        self.is_token = identity.is_token
        self._chosen.logins.succeeded += 1
        self._expires_at_ms = steady_ms + lifetime_ms if lifetime_ms else None
        # A session that has an end is looked at before each request.
        self.is_guarded = self._expires_at_ms is not None
        self._login, self._state = None, _State.OPEN
        return answer, lifetime_ms

    @property
    def failure(self) -> str:
        """Why the login has failed that the client may still end in order; else empty."""
        return "" if self._login is None else self._login.failure

    @property
    def mechanism_names(self) -> list[str]:
        """The mechanisms that the listener serves."""
        return list(self._mechanisms)
