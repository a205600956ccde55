"""Which new connections are served: at once, later, or not at all.

Counts the connections of the broker, of each listener and of each address. One beyond a limit on
the number is closed at once. One that comes faster than an address may connect is closed after a
delay (KIP-612), so that its client does not try again at once. One that comes faster than a
listener or the broker takes connections waits unread until its turn: it has its TCP connection
already, and in Kafka it would wait for `accept`. As many wait as there the operating system holds,
`socket.listen.backlog.size`: else a minute of connections that come and go would keep all others
out for an hour.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

from magnetar.config.broker import BrokerConfig
from magnetar.config.quotas import (
    ConnectionsConfig,
    ListenerLimits,
    listener_limits,
    parse_overrides,
)
from magnetar.runtime.quotas import Kind, Quotas
from magnetar.security.handshakes import Verdict
from magnetar.security.token_bucket import Rate, TokenBucket
from magnetar.storage import open_files
from wire.types import INT32_MAX

_BROKER = ""
_TOO_LONG = sys.maxsize
#: So that clients that find only this node do not come again at once.
_TURNED_AWAY_AFTER_MS = 100


class Admission:
    """The connections that are there, by what limits them."""

    def __init__(
        self,
        config: BrokerConfig,
        quotas: Quotas,
        steady_ms: Callable[[], int],
        is_serving: Callable[[], bool],
    ) -> None:
        """`is_serving`: whether any client may be served at present."""
        self._config = config
        self._quotas = quotas
        self._steady_ms = steady_ms
        self._is_serving = is_serving
        self._open_files_max = open_files.connections_max()
        self._of_listeners: dict[str, ListenerLimits] = {}
        self.look()
        self._total = 0
        self._by_listener: Counter[str] = Counter()
        self._by_host: Counter[str] = Counter()
        #: By listener, and the broker's.
        self._rates: dict[str, TokenBucket] = {}

    def look(self) -> None:
        """Judge by the configuration as it is now."""
        given = self._config.view(ConnectionsConfig)
        self._creation_rate = given.max_connection_creation_rate
        self._of_hosts = parse_overrides(given.max_connections_per_ip_overrides)
        self._of_listeners.clear()

    def enter(self, listener: str, host: str) -> Verdict:
        """Count a new connection and judge it. `leave` must follow in any case."""
        self._total += 1
        self._by_listener[listener] += 1
        self._by_host[host] += 1
        refusal = self._too_many(listener, host)
        if refusal:
            return Verdict(refusal)
        if not self._is_serving():
            return Verdict(close_after_ms=_TURNED_AWAY_AFTER_MS)
        close_after_ms = self._quotas.refuses(host)
        if close_after_ms:
            return Verdict(close_after_ms=close_after_ms)
        of_listener = self._limits_of(listener).creation_rate
        wait_ms = 0 if of_listener is None else self._wait_ms(listener, of_listener)
        if wait_ms != _TOO_LONG:
            of_broker_ms = self._wait_ms(_BROKER, self._creation_rate)
            if of_broker_ms == _TOO_LONG and listener in self._rates:
                # It is not served, so it does not count.
                self._rates[listener].take(-1, self._steady_ms())
            wait_ms = max(wait_ms, of_broker_ms)
        if wait_ms == _TOO_LONG:
            return Verdict(close_after_ms=_TURNED_AWAY_AFTER_MS)
        return Verdict(serve_after_ms=wait_ms)

    def leave(self, listener: str, host: str) -> None:
        """Forget a connection that has ended."""
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _limits_of(self, listener: str) -> ListenerLimits:
        limits = self._of_listeners.get(listener)
        if limits is None:
            limits = self._of_listeners[listener] = listener_limits(self._config, listener)
        return limits

    def _too_many(self, listener: str, host: str) -> str:
        config = self._config
        if self._total > config.max_connections:
            return f"max.connections={config.max_connections}"
        of_listener = self._limits_of(listener).connections_max
        if self._by_listener[listener] > of_listener:
            return f"listener.name.{listener.lower()}.max.connections={of_listener}"
        of_host = self._of_hosts.get(host, config.max_connections_per_ip)
        if self._by_host[host] > of_host:
            return f"max.connections.per.ip={of_host}"
        if self._total > self._open_files_max:
            # The logs must be able to open their files: the broker ends where they cannot.
            return f"{self._open_files_max} connections are what the limit of open files allows"
        return ""

    def _wait_ms(self, name: str, per_s: int) -> int:
        """Take one connection from a listener's rate, or the broker's; return its wait.

        _TOO_LONG, and nothing is taken, where as many wait already as may.
        """
        if per_s == INT32_MAX:
            self._rates.pop(name, None)
            return 0
        now_ms = self._steady_ms()
        rate = Rate(per_s, self._quotas.burst_s)
        bucket = self._rates.setdefault(name, TokenBucket(rate, now_ms))
        bucket.rate = rate
        bucket.take(1, now_ms)
        wait_ms = bucket.wait_ms(now_ms)
        if not wait_ms:
            return 0
        is_too_long = wait_ms > self._config.socket_listen_backlog_size * 1000 / per_s
        if is_too_long:
            bucket.take(-1, now_ms)
            wait_ms = _TURNED_AWAY_AFTER_MS
        of = f"listener.name.{name.lower()}." if name else ""
        self._quotas.tell(Kind.CONNECTION, bucket, wait_ms, f"{of}max.connection.creation.rate")
        return _TOO_LONG if is_too_long else wait_ms
