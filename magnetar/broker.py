"""One broker: its parts, in the order in which they start and stop.

Start: addresses bound, data directory and its lock, catalog, logs (recovered, unless the last stop
was clean), groups and transactions replayed and what they owe done, then connections are accepted.
Stop is the other way round and leaves everything durable. A failing disk or a broken invariant ends
the process: what is in memory may be ahead of what is stored, and the next start recovers from what
is stored.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from magnetar.apis.registry import load_apis
from magnetar.clock import Clock, SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener, parse_listeners
from magnetar.config.load import ConfigError
from magnetar.logging import get_logger
from magnetar.runtime.bounded_wait import Patience
from magnetar.runtime.cleaning import Cleaner
from magnetar.runtime.fetch_sessions import FetchSessions
from magnetar.runtime.flushing import Flushing
from magnetar.runtime.groups import Groups
from magnetar.runtime.healing import Healing
from magnetar.runtime.response_memory import AnswerMemory
from magnetar.runtime.retention import Retention
from magnetar.runtime.transactions import Transactions
from magnetar.server.dispatch import is_fatal
from magnetar.server.listening import Server
from magnetar.storage.adoption import adopt, stay_above
from magnetar.storage.broker_configs import BrokerConfigs
from magnetar.storage.catalog import Catalog
from magnetar.storage.client_quotas import ClientQuotas
from magnetar.storage.logs import Logs
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topics import Topics

EXIT_FAILURE = 1

_log = get_logger("broker")


def end_process(failure: BaseException) -> None:
    """Say why, plainly, and end the process at once: nothing may be answered any more."""
    try:
        print(
            f"magnetar: fatal: {str(failure) or type(failure).__name__}",
            file=sys.stderr,
            flush=True,
        )
    finally:
        # Also where standard error goes to the disk that is full.
        os._exit(EXIT_FAILURE)


class Broker:
    """The composition. Attributes are there after `start`; handlers find everything here."""

    logs: Logs
    catalog: Catalog
    broker_configs: BrokerConfigs
    stored_configs: StoredConfigs
    client_quotas: ClientQuotas
    topics: Topics
    groups: Groups
    transactions: Transactions
    healing: Healing
    retention: Retention
    cleaner: Cleaner
    flushing: Flushing
    server: Server
    cluster_id: str

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        on_failure: Callable[[BaseException], None] = end_process,
    ) -> None:
        """`on_failure` is called once, for what nobody can go on from; it should not return."""
        self.config = config
        self.clock = clock or SystemClock()
        self.node_id = config.node_id
        self.apis = dict(load_apis())
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots)
        self.patience = Patience()
        self.answer_memory = AnswerMemory(config.queued_max_request_bytes)
        #: This start's number, from 0: the leader epoch of every partition.
        self.epoch = 0
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self.is_stopped = False

    @property
    def data_dir(self) -> Path:
        """Where everything is kept."""
        return Path(self.config.log_dirs[0] if self.config.log_dirs else self.config.log_dir)

    @property
    def listeners(self) -> list[Listener]:
        """The addresses clients connect to, ports as the operating system chose them."""
        return self.server.listeners

    async def start(self) -> None:
        """Return when clients can connect. Raises ConfigError for what the operator must change."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_exception)
        self.server = Server(self, self.apis, self.fail)
        # Addresses first: a taken one is found out before the logs are recovered.
        self.server.bind(parse_listeners(self.config))
        try:
            self._open_storage()
            await self._recover()
        except (ConfigError, OSError, StorageFailure):
            self.server.unbind()
            raise
        await self.server.start()

    async def _recover(self) -> None:
        adopted = adopt(self.logs, self.catalog)
        self.topics = Topics(self.catalog, self.logs, self.config)
        await self.topics.start()
        for name in adopted:
            topic = self.topics.by_name(name)
            assert topic is not None
            stay_above(topic.partitions, self.catalog)
        self.groups = Groups(self)
        self.transactions = Transactions(self)
        await self.groups.start()
        await self.transactions.start()
        self.healing = Healing(self)
        await self.healing.start()
        self.transactions.heed_deadlines()
        self.retention = Retention(self)
        self.retention.start()
        self.cleaner = Cleaner(self)
        self.cleaner.start()
        self.flushing = Flushing(self)
        self.flushing.start()
        self.logs.sweep()

    async def stop(self) -> None:
        """Close connections, end what is under way, make everything durable."""
        self.is_stopped = True
        await self.server.stop()
        self.retention.stop()
        self.flushing.stop()
        await self.cleaner.stop()
        await self.healing.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.topics.stop()
        await self.logs.close()
        self.catalog.close()

    def fail(self, failure: BaseException) -> None:
        """Stop because of a failing disk or a broken invariant; the first call counts."""
        if self._failure is not None:
            return
        self._failure = failure
        try:
            _log.error("broker failed", reason=str(failure), exc_info=failure)
        finally:
            self._on_failure(failure)

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no one caught. In a connection it is that connection's; elsewhere it is fatal."""
        failure = context.get("exception") or RuntimeError(context["message"])
        if "transport" in context or "protocol" in context:
            _log.warning("connection failed", reason=f"{context['message']}: {failure}")
        elif "handle" in context or is_fatal(failure):
            self.fail(failure)
        else:
            _log.error("unhandled error", reason=context["message"], exc_info=failure)

    def _open_storage(self) -> None:
        config = self.config
        directory = self.data_dir
        durability = Durability(config.durability)
        try:
            self.logs = Logs(str(directory), config, self.clock, self.fail)
        except OSError as error:
            raise ConfigError(
                f"cannot use the data directory {directory}: {error.strerror}"
            ) from error
        self.catalog = Catalog(directory, durability, cluster_id=self.logs.cluster_id)
        self.cluster_id = self.catalog.cluster_id()
        self.broker_configs = BrokerConfigs(config, self.catalog)
        self.stored_configs = StoredConfigs(self.catalog)
        self.client_quotas = ClientQuotas(self.catalog)
        self.logs.claim(self.cluster_id, self.node_id)
        self.epoch = self.logs.leader_epoch = self.catalog.next_broker_epoch()
