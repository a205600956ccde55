"""One broker: the composition of its parts, in the order in which they start and stop.

A start, after a clean stop or after `kill -9`:

1. bind the addresses; lock the data directory; write what the journal holds to its files again
   (`logstore.directory.journal_replay`); open the catalog; adopt logs that the catalog does not
   know (`storage.adoption`), and only then begin the epoch of this start;
2. open all logs, and recover those that were not stopped cleanly
   (`logstore.segments.batch_recovery`, then `logstore.partition.state_recovery`);
3. replay groups, then transactions, and do the work that they owe (`runtime.shard`);
4. heal the transactions that are open in a partition and unknown to their coordinator;
5. accept connections. Nothing is answered before this.

A stop goes the other way round and leaves everything durable.
`magnetar.runtime.failing` says what ends a broker at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from coordinator.transactions.remembered_holds import RememberedHolds
from logstore.disk.durability import Durability
from logstore.disk.files import StorageFailure
from magnetar.apis.api_versions import TELEMETRY_APIS
from magnetar.apis.leased import leased
from magnetar.apis.registry import load_apis
from magnetar.clock import Clock, SystemClock
from magnetar.config.broker import BrokerConfig
from magnetar.config.listeners import Listener, parse_listeners
from magnetar.config.load import ConfigError, unusable_directory
from magnetar.config.observing import ObservingConfig
from magnetar.runtime.authentication import Authentication
from magnetar.runtime.background import Background, WholeWork
from magnetar.runtime.batch_checks import BatchChecks
from magnetar.runtime.catalog_watch import CatalogWatch
from magnetar.runtime.cleaning import Cleaner
from magnetar.runtime.cluster_node import ClusterNode
from magnetar.runtime.config_resources import ConfigResources
from magnetar.runtime.failing import Failing, end_process
from magnetar.runtime.fetch_sessions import FetchSessions
from magnetar.runtime.flushing import Flushing
from magnetar.runtime.group_shards import GroupShards
from magnetar.runtime.groups import Groups
from magnetar.runtime.healing import Healing
from magnetar.runtime.nodes import ANNOUNCED_S, Nodes, as_configured
from magnetar.runtime.participants import LocalParticipants
from magnetar.runtime.quotas import Quotas
from magnetar.runtime.refusal_counts import RefusalCounts
from magnetar.runtime.response_memory import ResponseMemory
from magnetar.runtime.retention import Retention
from magnetar.runtime.services import Node, Services
from magnetar.runtime.shared_timers import SharedTimers
from magnetar.runtime.telemetry import ClientTelemetry, takes_telemetry
from magnetar.runtime.token_expiry import TokenExpiry
from magnetar.runtime.transactions import Transactions
from magnetar.runtime.turns import Turns
from magnetar.server.listening import Bind, Server, bind_socket
from magnetar.storage.acls import Acls, load_acls
from magnetar.storage.adoption import adopt, remove_remains, tell_open
from magnetar.storage.broker_configs import BrokerConfigs
from magnetar.storage.catalog import Catalog
from magnetar.storage.client_quotas import ClientQuotas
from magnetar.storage.delegation_tokens import DelegationTokens, load_tokens
from magnetar.storage.leaders import Placement
from magnetar.storage.logs import Logs
from magnetar.storage.lost_catalog import tell_if_catalog_lost
from magnetar.storage.scram_credentials import ScramCredentials
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from magnetar.storage.topics import Topics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from magnetar.peers.addresses import PeerNetwork
    from magnetar.peers.composition import AmongPeers
    from magnetar.peers.node_peers import NodePeers
    from magnetar.runtime.cluster_members import Joining
    from magnetar.server.span_export import SpanExport

#: Opens where a broker keeps everything; the last argument hears a fatal error. Raises ConfigError.
OpenStorage: TypeAlias = Callable[
    [BrokerConfig, Clock, Callable[[BaseException], None]], tuple[Logs, Catalog]
]

#: Makes the way of markers to partitions. The last argument is None for a node that is alone.
MakeParticipants: TypeAlias = Callable[
    [Topics, GroupShards, Turns, RememberedHolds | None], LocalParticipants
]


def open_directory(
    config: BrokerConfig,
    clock: Clock,
    fail: Callable[[BaseException], None],
    open_logs: Callable[..., Logs] = Logs.in_directory,
) -> tuple[Logs, Catalog]:
    """Open the logs and the catalog in the data directory of `config`. Raises ConfigError."""
    directory = data_dir_of(config)
    durability = Durability(config.durability)
    try:
        if durability is not Durability.MEMORY:
            complete_import(directory)
            tell_if_catalog_lost(directory)
        logs = open_logs(str(directory), config, clock, fail)
    except OSError as error:
        raise unusable_directory(directory, error) from error
    return logs, Catalog(directory, durability, cluster_id=logs.cluster_id)


def data_dir_of(config: BrokerConfig) -> Path:
    """Return the directory of the logs and the catalog."""
    return Path(config.log_dirs[0] if config.log_dirs else config.log_dir)


class Broker:
    """The composition. Its attributes exist once `start` has returned."""

    logs: Logs
    catalog: Catalog
    broker_configs: BrokerConfigs
    stored_configs: StoredConfigs
    client_quotas: ClientQuotas
    tokens: DelegationTokens | None
    authentication: Authentication
    acls: Acls | None
    topics: Topics
    nodes: Nodes
    watch: CatalogWatch | None = None
    groups: Groups
    transactions: Transactions
    healing: Healing
    retention: Retention
    cleaner: Cleaner
    flushing: Flushing
    token_expiry: TokenExpiry
    services: Services
    server: Server
    cluster_id: str

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        on_failure: Callable[[BaseException], None] = end_process,
        open_storage: OpenStorage = open_directory,
        bind: Bind = bind_socket,
        make_participants: MakeParticipants = LocalParticipants,
        members: Mapping[int, Sequence[Listener]] | None = None,
        peer_network: PeerNetwork | None = None,
        joining: Joining | None = None,
    ) -> None:
        """`on_failure` is called once, with the first fatal error; it should not return.

        A simulation has a clock, a storage and a network of its own; threads and timers are those
        of its event loop. A test's broker has a clock, a storage and participants with faults.
        `members`: the listeners of each node, where several share the catalog that `open_storage`
        opens. `peer_network`: how they reach each other; None: by sockets in their directories,
        which lie side by side. `joining`: what makes it a node of a cluster, which nodes join and
        leave while others run.
        """
        self.config = config
        self.clock = clock or SystemClock()
        self.node_id = config.node_id
        self.telemetry: ClientTelemetry | None = None
        self.apis = dict(load_apis())
        if not takes_telemetry(config):
            for key in TELEMETRY_APIS:
                del self.apis[key]
        self.response_memory = ResponseMemory(config.queued_max_request_bytes)
        self.turns = Turns()
        #: The number of this start, from 0: the leader epoch of every partition.
        self.epoch = 0
        self._adopted: list[str] = []
        #: The catalog's version before anything was read from it.
        self._catalog_version = 0
        self._peer_network = peer_network
        #: The other nodes; None for a node that is alone.
        self.peers: NodePeers | None = None
        self.among_peers: AmongPeers | None = None
        self._held: RememberedHolds | None = None
        self._failing = Failing(on_failure)
        self.fail = self._failing.fail
        self._announcing = Background(self.fail)
        self._spans: SpanExport | None = None
        self._open_storage = open_storage
        self._bind = bind
        self._make_participants = make_participants
        self._members = members or {}
        self._placement = Placement(config.node_id, [*self._members], moves=joining is not None)
        self._cluster = None if joining is None else ClusterNode(joining, config, self._placement)
        self.is_stopped = False

    @property
    def data_dir(self) -> Path:
        """The directory of the logs and the catalog."""
        return data_dir_of(self.config)

    @property
    def listeners(self) -> list[Listener]:
        """The addresses that clients connect to, with the ports that the operating system chose."""
        return self.server.listeners

    @property
    def is_waiting(self) -> bool:
        """Whether the start waits for a database that does not answer, and has begun nothing."""
        return self._cluster is not None and self._cluster.is_waiting

    async def start(self) -> None:
        """Return when clients can connect. Raises ConfigError where a setting must change."""
        asyncio.get_running_loop().set_exception_handler(self._failing.on_loop_exception)
        self._spans = open_spans(self.config)
        self.server = Server(
            self.config,
            self.clock,
            self.response_memory,
            self.turns,
            self.apis,
            self.fail,
            self._bind,
        )
        # Addresses first: a taken one is reported before the logs are recovered, which takes time.
        self.server.bind(parse_listeners(self.config))
        catalog: Catalog | None = None
        try:
            logs, catalog = self._open_storage(self.config, self.clock, self.fail)
            # Only now: the catalog decides which cluster this is; a new one takes over its id.
            logs.claim(catalog.cluster_id(), self.node_id)
            await self.use_storage(logs, catalog)
            self.authentication.serve(self.listeners)
            await self.authentication.start()
            await self._recover()
        except (ConfigError, OSError, StorageFailure):
            # The process of a test goes on: its addresses must be free for the next broker.
            self.server.unbind()
            if catalog is not None:
                catalog.close()
            raise
        if self._spans is not None:
            self.server.dispatcher.tracing = self._spans.tracing
        if not self._placement.is_alone:
            self._announcing.start(self.nodes.announce_start())
            await self._announcing.ended(ANNOUNCED_S if self._cluster else 0)
        await self.server.start(self.services)

    async def _recover(self) -> None:
        self.topics = Topics(self.catalog, self.logs, self.config, self._placement)
        self.topics.see_nodes(self.catalog.nodes.epochs())
        await self.topics.start()
        self._join_nodes()
        for name in self._adopted:
            topic = self.topics.by_name(name)
            assert topic is not None
            tell_open(topic.local)
        # Groups first: the transactions that are replayed send their markers to them.
        groups = self.groups = Groups(
            self.topics, self.stored_configs, self.clock, self.config, self.fail, self.turns
        )
        participants = self._make_participants(self.topics, groups.shards, self.turns, self._held)
        among = self.among_peers = self._among_peers(participants)
        self.transactions = Transactions(
            self.topics,
            self.catalog,
            self.clock,
            self.config,
            offsets_partition_of=groups.shards.partition_of,
            participants=participants,
            storage=self.logs.storage,
            stop=self._stop_for_good,
            elsewhere=None if among is None else among.markers,
            told=None if among is None else among.told,
        )
        await self._replay()
        about = (self.topics, self.clock, self.config, self.fail)
        self.healing = Healing(
            *about,
            self.transactions,
            participants,
            None if among is None else among.producers,
            None if among is None else among.holds,
        )
        await self.healing.start()
        if self.watch is not None:
            if self._cluster is None:
                await self.watch.catch_up()
                self.watch.start(self.fail)
            else:
                parts = (self.watch, self.topics, self.nodes, self.logs, self.clock)
                await self._cluster.start(*parts, self.server, self.fail)
        # After healing, which passes over transactions that are being ended.
        self.transactions.heed_deadlines()
        kept = (self.topics, self.logs, self.clock, self.config, self.fail)
        self.retention = Retention(*kept)
        self.retention.start()
        self.cleaner = Cleaner(*kept)
        self.cleaner.start()
        self.flushing = Flushing(*about)
        self.flushing.start()
        self.token_expiry = TokenExpiry(self.tokens, self.clock, self.config)
        self.token_expiry.start()
        self.services = self._build_services(participants)
        if among is not None:
            await among.serve(self.transactions, self.fail)
        # Last: deletions left over from the last process keep no client waiting.
        self.logs.sweep()

    async def _replay(self) -> None:
        self.topics.led.coordinators = {
            CONSUMER_OFFSETS: self.groups.shards,
            TRANSACTION_STATE: self.transactions.store,
        }
        await self.groups.start()
        await self.transactions.start()

    def _join_nodes(self) -> None:
        """Find out who the other nodes are, and hear of what they change from now on."""
        if not self._placement.is_alone:
            # By now the catalog may have more than the topics that were opened: the watch looks.
            stores = (self.stored_configs, self.broker_configs, self.client_quotas, self.acls)
            self.watch = CatalogWatch(
                self.catalog,
                self._catalog_version,
                self.topics,
                *stores,
                self.authentication.credentials,
                self.tokens,
            )
            self.peers = self._meet_peers()
        reached = (
            as_configured(self._members, self.config.broker_rack)
            if self._cluster is None
            else self._cluster.members.reached
        )
        self.nodes = Nodes(self.topics, self.catalog, self.config, reached, self.watch, self.peers)

    def _meet_peers(self) -> NodePeers:
        """Return the way to the other nodes. They cannot reach this one yet."""
        # Imported by nodes that are not alone: the others start faster without.
        from magnetar.peers.addresses import LocalSockets
        from magnetar.peers.dialling import Own
        from magnetar.peers.node_peers import NodePeers

        self._held = RememberedHolds()
        network = self._peer_network or LocalSockets(
            self.node_id, lambda other: self.data_dir.parent / str(other)
        )
        return NodePeers(
            Own(self.cluster_id, self.node_id, self.epoch),
            self.catalog.secret(),
            network,
            lambda: [other for other in self._placement.node_ids if other != self.node_id],
        )

    def _among_peers(self, participants: LocalParticipants) -> AmongPeers | None:
        """Return what this node asks of its peers and does for them; None where it is alone."""
        if self.peers is None or self._held is None:
            return None
        from magnetar.peers.composition import AmongPeers

        own = (self.nodes, self.topics, self._held, participants)
        return AmongPeers(self.peers, *own, self.clock, self.turns, self.logs.bases)

    async def stop(self) -> None:
        """Close connections, end the work under way, and make everything durable."""
        self.is_stopped = True
        if self._cluster is not None:
            # While clients are served still: each goes on at the new leader at once.
            await self._cluster.drain()
        # Requests first: after this nothing new is appended.
        await self.server.stop()
        self.authentication.stop()
        await self.logs.in_time(self.services.whole_work.ended())
        if self.watch is not None:
            self._announcing.cancel()
            self.watch.stop()
        self.retention.stop()
        self.token_expiry.stop()
        self.flushing.stop()
        await self.cleaner.stop()
        await self.healing.stop()
        await self.transactions.stop()
        if self.among_peers is not None:
            self.among_peers.stop()
        self.groups.stop()
        await self.logs.in_time(self.topics.stop())
        await self.logs.close()
        if self._cluster is not None:
            await self._cluster.leave()
        self.catalog.close()
        if self._spans is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._spans.close)

    def _stop_for_good(self, failure: BaseException) -> None:
        """End the broker before a part of what a decision appended becomes durable."""
        self.fail(failure)
        self.logs.fail(failure)

    def _build_services(self, participants: LocalParticipants) -> Services:
        whole_work = WholeWork(self.fail)
        return Services(
            node=Node(self.node_id, self.cluster_id, self.epoch, self.data_dir),
            nodes=self.nodes,
            config=self.config,
            clock=self.clock,
            topics=self.topics,
            logs=self.logs,
            catalog=self.catalog,
            config_resources=ConfigResources(
                self.config, self.topics, self.broker_configs, self.stored_configs
            ),
            client_quotas=self.client_quotas,
            quotas=Quotas(self.client_quotas, self.config, self.clock, lambda: len(self.nodes.ids)),
            authentication=self.authentication,
            refusals=RefusalCounts(),
            telemetry=self.telemetry,
            acls=self.acls,
            tokens=self.tokens,
            groups=self.groups,
            transactions=self.transactions,
            participants=participants,
            holds_elsewhere=None if self.among_peers is None else self.among_peers.holds,
            whole_work=whole_work,
            batch_checks=BatchChecks(whole_work, self.turns),
            fetch_sessions=FetchSessions(self.config.max_incremental_fetch_session_cache_slots),
            fetch_timers=SharedTimers(asyncio.get_running_loop()),
            response_memory=self.response_memory,
            turns=self.turns,
        )

    async def gather_metrics(self) -> list[Metric]:
        """Return every metric as it is now."""
        # Imported at the first scrape: the library takes a tenth of a second of a start.
        from magnetar.metrics.gathering import gather

        return await gather(self.services, self.healing, self.server)

    async def use_storage(self, logs: Logs, catalog: Catalog) -> None:
        """Keep everything in `logs` and `catalog`, adopt logs that the catalog does not know, and
        begin the next epoch of this broker."""
        self.logs, self.catalog = logs, catalog
        self._catalog_version = catalog.changes.count()
        self.cluster_id = catalog.cluster_id()
        self.broker_configs = BrokerConfigs(self.config, catalog)
        self.stored_configs = StoredConfigs(catalog)
        if takes_telemetry(self.config):
            bytes_max = self.config.view(ObservingConfig).telemetry_max_bytes
            self.telemetry = ClientTelemetry(self.stored_configs, bytes_max, self.turns)
        self.client_quotas = ClientQuotas(catalog)
        self.acls = load_acls(self.config, catalog)
        self.tokens = load_tokens(self.config, catalog)
        self.authentication = Authentication(self.config, ScramCredentials(catalog), self.tokens)
        if self._placement.is_alone:
            # In this order: the epoch of this start is above every epoch in the adopted logs.
            self._adopted = adopt(logs, catalog)
            self.epoch = logs.leader_epoch = catalog.next_broker_epoch()
        else:
            remove_remains(logs, catalog)
            if self._cluster is None:
                self.epoch = catalog.nodes.start(self.node_id)
            else:
                self.apis.update(leased(self.apis, logs))
                self.epoch = await self._cluster.join(catalog, self.listeners)
            logs.begin_as(self.node_id, self.epoch)


def open_spans(config: BrokerConfig) -> SpanExport | None:
    """Return what exports spans of requests; None where none are. Raises ConfigError."""
    if config.view(ObservingConfig).traces_exporter == "none":
        return None
    # Imported where it is asked for: it takes longer than all of a start.
    try:
        from magnetar.server.span_export import SpanExport
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"traces.exporter=otlp: there is no module {missing.name}: pip install 'magnetar[otel]'"
        ) from missing
    return SpanExport(config.node_id)


def complete_import(directory: Path) -> None:
    """Complete an import that was interrupted after everything was staged. Raises ConfigError."""
    if not (directory / ".import").exists():
        return
    # Imported only where there is an import to complete: starts are fast without it.
    from magnetar.importing.run import finish_interrupted
    from magnetar.importing.source import ImportRefused, held

    try:
        with held(directory):
            finish_interrupted(directory)
    except ImportRefused as refusal:
        raise ConfigError(str(refusal)) from refusal
