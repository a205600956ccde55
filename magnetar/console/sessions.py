"""Who asks: a browser's session, and the connections of the Kafka user behind it.

Where the cluster wants SASL, a session begins with a login as a Kafka user. Everything on its pages
is asked as that user, so the cluster's ACLs hold. The password stays in this process's memory:
connections that break are made anew. Without SASL all browsers share one access.

A CSRF token is computed from the session's id, so nothing is stored for browsers that only look.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from magnetar.client import Client, NotLetIn, TopicPartition, Unreachable
from magnetar.client.errors import Silent
from magnetar.client.security import Security
from magnetar.client.true_lag import TrueLag
from magnetar.console.lag_history import LagHistory

#: How long a page waits for a node, where others can answer. After that the node is left out.
LOOK_S = 3.0
#: The time after which a node that did not answer is asked again.
_SILENT_S = 15.0
_ID_BYTES = 24
#: Connections kept for the next request, by access.
_IDLE_MAX = 4
#: Logins at once. The one that was used longest ago makes room for one more.
_SESSIONS_MAX = 500
_IDLE_S_MAX = 8 * 3600.0

Connect = Callable[[Security], Client]


@dataclass(frozen=True)
class Ends:
    """The ends of all partitions at one moment, for the rate until the next look."""

    time_s: float
    offsets: Mapping[TopicPartition, int]


T = TypeVar("T")


class Access:
    """Connections to the cluster as one user, and what was noticed through them."""

    def __init__(self, connect: Callable[[], Client], username: str | None = None) -> None:
        self.username = username
        self.true_lag = TrueLag()
        self.history = LagHistory(self.ask, self.true_lag)
        #: The ends of partitions when nodes were looked at last.
        self.ends: Ends | None = None
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        #: The client that was made last: it knows other addresses of the cluster.
        self._last: Client | None = None
        #: The wait for each response, where nothing is left out.
        self._timeout_s = LOOK_S
        #: Nodes that do not answer, and when they are asked again.
        self._silent: dict[int, float] = {}
        self._is_closed = False

    def ask(self, question: Callable[[Client], T]) -> T:
        """Return what a question finds. A connection that broke while it was idle is replaced.

        For questions that change nothing: one may be asked twice.
        """
        client = self._idle_one()
        if client is not None:
            try:
                with self._kept(client):
                    return question(client)
            except Unreachable:
                pass
        return self.act(question)

    def look(self, question: Callable[[Client], T]) -> T:
        """Return what a question finds without the nodes that do not answer: `client.left_out`.

        The question is asked again without each such node. For pages, which show what the other
        nodes say. Not for what a change rests on.
        """
        client = self._idle_one() or self._another()
        with self._kept(client):
            try:
                return self._look(client, question)
            finally:
                client.left_out, client.timeout_s = frozenset(), self._timeout_s

    def _look(self, client: Client, question: Callable[[Client], T]) -> T:
        failed: set[int | None] = set()
        client.left_out = self._left_out()
        while True:
            has_others = len(client.node_ids) > 1
            client.timeout_s = self._wait_s(has_others=has_others)
            try:
                return question(client)
            except Unreachable as failure:
                node_id = failure.node_id
                if node_id in client.left_out:
                    raise
                is_first = node_id not in failed
                failed.add(node_id)
                # A connection that broke while it was idle is replaced, and so is one to an
                # address that is no node's own.
                if is_first and (node_id is None or not isinstance(failure, Silent)):
                    continue
                if node_id is None or not has_others:
                    raise
                self._leave_out({node_id})
                client.left_out |= {node_id}

    def _wait_s(self, *, has_others: bool) -> float:
        # A single node may as well take its time: nothing is shown without it.
        return min(self._timeout_s, LOOK_S) if has_others else self._timeout_s

    def _left_out(self) -> frozenset[int]:
        """Return the nodes that are not asked now."""
        now_s = time.monotonic()
        # A copy: other threads look too.
        silent = list(self._silent.items())
        return frozenset(node_id for node_id, until_s in silent if now_s < until_s)

    def _leave_out(self, silent: Iterable[int]) -> None:
        until_s = time.monotonic() + _SILENT_S
        self._silent.update(dict.fromkeys(silent, until_s))

    @property
    def is_closed(self) -> bool:
        """Whether its login has ended."""
        return self._is_closed

    def act(self, deed: Callable[[Client], T]) -> T:
        """Return what a deed answers. It is done over a new connection, and once."""
        self._refuse_closed()
        with self._kept(self._new()) as client:
            return deed(client)

    def close(self) -> None:
        """Close what is idle. What is at work is closed when it is done."""
        self.history.stop()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def _refuse_closed(self) -> None:
        """Raise NotLetIn where its login has ended: a live page may go on to ask."""
        if self._is_closed:
            raise NotLetIn("The session has ended: log in again.")

    def _idle_one(self) -> Client | None:
        """Take a client that waits for the next request, if one does."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _new(self) -> Client:
        client = self._last = self._connect()
        self._timeout_s = client.timeout_s
        return client

    def _another(self) -> Client:
        """Return one more client: by any node that is known, if the cluster has answered before."""
        self._refuse_closed()
        if self._last is None:
            return self._new()
        left_out = self._left_out()
        has_others = len({*self._last.node_ids} - left_out) > 1
        client = self._last.again(left_out, self._wait_s(has_others=has_others))
        self._leave_out(client.left_out - left_out)
        return client

    @contextmanager
    def _kept(self, client: Client) -> Iterator[Client]:
        is_sound = False
        try:
            yield client
            is_sound = True
        finally:
            with self._lock:
                is_kept = is_sound and not self._is_closed and len(self._idle) < _IDLE_MAX
                if is_kept:
                    self._idle.append(client)
            if not is_kept:
                client.close()


@dataclass
class Session:
    """A browser's session. `access` None: it has to log in."""

    id: str
    csrf_token: str
    access: Access | None
    is_new: bool = False


@dataclass
class _Login:
    access: Access
    used: float


@dataclass
class Sessions:
    """Every session. `connect` makes a client with these settings, or raises ClientError."""

    connect: Connect
    security: Security
    clock: Callable[[], float] = time.monotonic
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _logins: dict[str, _Login] = field(default_factory=dict)
    _anyone: Access | None = None
    #: Logins come from threads, and requests from the event loop.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def wants_login(self) -> bool:
        """Whether the cluster knows users."""
        return self.security.has_sasl

    def begin(self) -> None:
        """Begin to note lag, where that takes no login."""
        access = self.of(None).access
        if access is not None:
            access.history.begin()

    def of(self, session_id: str | None) -> Session:
        """Return the session of a cookie; a new one if there is none with this id."""
        is_new = session_id is None
        known = secrets.token_urlsafe(_ID_BYTES) if session_id is None else session_id
        return Session(known, self._token(known), self._access(known), is_new)

    def log_in(self, username: str, password: str) -> Session:
        """Return a new session of this Kafka user. ClientError: the cluster does not let it in."""
        security = replace(self.security, username=username, password=password)
        access = Access(lambda: self.connect(security), username)
        # The first connection is the proof: the broker checks the password.
        access.act(lambda client: client.node_ids)
        # A new id, not the browser's: another person may have planted that one.
        session = self.of(None)
        session.access = access
        with self._lock:
            self._expire()
            self._logins[session.id] = _Login(access, self.clock())
        access.history.begin()
        return session

    def log_out(self, session_id: str) -> None:
        """Forget a login and its password."""
        with self._lock:
            login = self._logins.pop(session_id, None)
        if login is not None:
            login.access.close()

    def is_token(self, session: Session, token: str) -> bool:
        """Return whether a form was made for this session."""
        return hmac.compare_digest(session.csrf_token.encode(), token.encode())

    def close(self) -> None:
        for session_id in list(self._logins):
            self.log_out(session_id)
        if self._anyone is not None:
            self._anyone.close()

    def _token(self, session_id: str) -> str:
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def _access(self, session_id: str) -> Access | None:
        if not self.wants_login:
            with self._lock:
                if self._anyone is None:
                    self._anyone = Access(lambda: self.connect(self.security))
                return self._anyone
        login = self._logins.get(session_id)
        if login is None:
            return None
        now = self.clock()
        if now - login.used > _IDLE_S_MAX:
            self.log_out(session_id)
            return None
        login.used = now
        return login.access

    def _expire(self) -> None:
        old = self.clock() - _IDLE_S_MAX
        for session_id in [each for each, login in self._logins.items() if login.used < old]:
            self.log_out(session_id)
        while len(self._logins) >= _SESSIONS_MAX:
            self.log_out(min(self._logins, key=lambda each: self._logins[each].used))
