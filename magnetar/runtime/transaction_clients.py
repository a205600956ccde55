"""The client that speaks for each transactional id, for log lines about time-outs and limits.

It is in memory only, with one entry for each id that the coordinator knows. InitProducerId, and a
request that begins or extends a transaction, name the client. After a restart, a client is known
again from its next such request on.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.transactions.shard import TransactionIndex
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.logging import get_logger, shown
from magnetar.runtime.request_context import RequestContext

#: How often the log says that the limit is reached.
_INTERVAL_MS = 10_000

_log = get_logger("transactions")


class TransactionClient(NamedTuple):
    """A client as its requests name it, and the address they came from."""

    client_id: str | None = None
    client_address: str | None = None


class TransactionClients:
    """The client that last spoke for each transactional id."""

    def __init__(self) -> None:
        #: The fields of a TransactionClient, which is made only when a log line needs it.
        self._clients: dict[str, tuple[str | None, str | None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def note(self, transactional_id: str, context: RequestContext) -> None:
        """Remember who sent a request that the coordinator has accepted for this id."""
        # Cut: a client id may have 32 KB, another one for each transactional id, kept for a week.
        client_id = context.client_id and shown(context.client_id)
        self._clients[transactional_id] = client_id, context.client_address

    def of(self, transactional_id: str) -> TransactionClient:
        """Return who spoke last for the id; None in both fields where no client is known."""
        return TransactionClient(*self._clients.get(transactional_id, ()))

    def forget(self, transactional_id: str) -> None:
        """The id has expired."""
        self._clients.pop(transactional_id, None)


class ActiveLimit:
    """`max.active.transactions`: how many may be open at once over all shards. 0: no limit."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        index: TransactionIndex,
        clients: TransactionClients,
    ) -> None:
        self._config = config
        self._clock = clock
        self._index = index
        self._clients = clients
        self._told_ms = 0

    def may_begin(self) -> bool:
        """Whether one more transaction may be opened; those that are open may go on anyway."""
        limit = self._config.max_active_transactions
        if limit == 0 or self._index.open_count < limit:
            return True
        self._tell()
        return False

    def _tell(self) -> None:
        """Log who holds the oldest open transaction, now and then."""
        now_ms = self._clock.now_ms()
        oldest = self._index.oldest_open()
        if oldest is None or 0 <= now_ms - self._told_ms < _INTERVAL_MS:
            return
        self._told_ms = now_ms
        client = self._clients.of(oldest.transactional_id)
        _log.warning(
            "max.active.transactions are open",
            open=self._index.open_count,
            oldest_transactional_id=oldest.transactional_id,
            oldest_txn_id=str(oldest.txn_id),
            oldest_client_id=client.client_id,
            oldest_client_address=client.client_address,
            oldest_open_ms=max(now_ms - oldest.started_at_ms, 0),
            oldest_timeout_ms=oldest.timeout_ms,
        )
