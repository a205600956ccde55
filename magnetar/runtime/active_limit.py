"""`max.active.transactions`: how many may be open at once, and who holds the oldest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.transactions.index import TransactionIndex
from magnetar.logging import get_logger
from magnetar.runtime.transaction_clients import TransactionClients

if TYPE_CHECKING:
    from magnetar.broker import Broker

#: How often the log says that the limit is reached.
_INTERVAL_MS = 10_000

_log = get_logger("transactions")


class ActiveLimit:
    """The limit over all shards. 0: none."""

    def __init__(
        self, broker: Broker, index: TransactionIndex, clients: TransactionClients
    ) -> None:
        self._broker = broker
        self._index = index
        self._clients = clients
        self._told_ms = 0

    def may_begin(self) -> bool:
        """Whether one more transaction may be opened; those that are open may go on anyway."""
        limit = self._broker.config.max_active_transactions
        if limit == 0 or self._index.open_count < limit:
            return True
        self._tell()
        return False

    def _tell(self) -> None:
        now_ms = self._broker.clock.now_ms()
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
            oldest_open_ms=now_ms - oldest.started_at_ms,
            oldest_timeout_ms=oldest.timeout_ms,
        )
