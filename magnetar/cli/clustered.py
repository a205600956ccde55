"""The nodes that one `serve --storage` runs, of a cluster that is kept in PostgreSQL.

The supervisor takes ids and addresses, and locks the data directory, for as long as it runs. The
directory has sockets, caches and `history.json`; the cluster is in the database.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from logstore.disk.files import lock_file
from logstore.remote.commit_store import LEASE_MS, CommitsLost
from magnetar.broker import Broker, data_dir_of
from magnetar.cli.workers import WorkerNode, close_others, worker_nodes
from magnetar.clock import Clock
from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig
from magnetar.config.listeners import parse_address, parse_listeners, protocol_of_peers
from magnetar.config.load import ConfigError, unusable_directory
from magnetar.config.security import listener_security
from magnetar.logging import get_logger
from magnetar.peers.tcp import TcpNetwork
from magnetar.peers.tls import PeerTls
from magnetar.runtime.cluster_members import ClusterMembers, Joining
from magnetar.runtime.failing import end_process
from magnetar.server.listening import socket_at
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import IdInUse
from magnetar.storage.cluster_objects import agreed_objects, objects_prefix
from magnetar.storage.database import CatalogFailure, CatalogUnavailable, Database
from magnetar.storage.history import ClusterHalted, halt, read_history
from magnetar.storage.logs import Logs
from magnetar.storage.node_ids import claim
from magnetar.storage.replication import read_replication

if TYPE_CHECKING:
    from logstore.remote.bucket import Bucket
    from magnetar.storage.postgres_database import PostgresDatabase

_T = TypeVar("_T")

_LOCK = ".cluster.lock"
#: How long a start waits for an id that another place has: until that place's lease has ended.
_ID_IN_USE_S = LEASE_MS / 1000 + 2
#: The wait before a database that is away is asked again.
_ASK_AGAIN_S = 0.5

_log = get_logger("nodes")


class Place(NamedTuple):
    """What one supervisor holds for its nodes (a host and a data directory are a place)."""

    url: str
    #: The URL of the bucket; "" if there is none.
    objects: str
    data_dir: Path
    cluster_id: str
    owner: str
    nodes: Mapping[int, WorkerNode]
    #: By node id: the socket at which peers reach the node.
    peers: Mapping[int, socket.socket]


@contextmanager
def joined(config: BrokerConfig, count: int) -> Iterator[Place]:
    """Hold the data directory, ids and addresses for the nodes of this supervisor.

    Makes the cluster's tables in an empty database. Raises ConfigError.
    """
    data_dir = data_dir_of(config).absolute()
    url = str(config.view(ClusterConfig).cluster_storage)
    release = _lock(data_dir)
    try:
        owner = f"{socket.gethostname()}:{data_dir}"
        cluster_id, node_ids, bucket = _answered(
            url,
            config.view(ClusterConfig).initial_broker_registration_timeout_ms / 1000,
            lambda: _claim(config, count, url, owner),
        )
        nodes = worker_nodes(config, node_ids)
        peers = {node_id: _bind_peers(config, node_id - node_ids[0]) for node_id in nodes}
        for node_id, node in nodes.items():
            # Only to find mistakes in the settings now: each node makes its own.
            _tls(node, _peer_host(node, peers[node_id]))
        yield Place(url, bucket, data_dir, cluster_id, owner, nodes, peers)
    finally:
        release()


def _claim(config: BrokerConfig, count: int, url: str, owner: str) -> tuple[str, list[int], str]:
    """Return the cluster's id, ids for the nodes, and the bucket.

    Raises ConfigError, CatalogFailure, CatalogUnavailable.
    """
    database = _database(url, owner)
    with closing(database):
        # First: any statement may fail without the settings of its session.
        database.check_sessions()
        catalog = Catalog(None, is_shared=True, database=database)
        _check_promises(catalog.database, config)
        cluster_id = catalog.cluster_id()
        asked = config.node_id if "node.id" in config.static else None
        node_ids = _claimed(catalog, owner, count, asked)
        bucket = agreed_objects(catalog, config.view(ClusterConfig).cluster_objects, owner)
        return cluster_id, node_ids, bucket


def _answered(url: str, timeout_s: float, ask: Callable[[], _T]) -> _T:
    """Return what `ask` returns, once the database answers. Raises ConfigError after `timeout_s`.

    Waits, because after an outage the database may start together with its nodes.
    """
    deadline = time.monotonic() + timeout_s
    is_told = has_refused = False
    while True:
        try:
            return ask()
        except CatalogUnavailable as away:
            from magnetar.storage.postgres_database import may_answer_later

            if time.monotonic() > deadline:
                raise ConfigError(f"--storage: {away.detail}") from None
            if not may_answer_later(url, away):
                # Asked once more: it may have come back between the two questions.
                if has_refused:
                    raise ConfigError(f"--storage: {away.detail}") from None
                has_refused = True
                continue
            has_refused = False
            if not is_told:
                _log.warning(
                    "the start waits for the database",
                    gives_up_after_s=timeout_s,
                    reason=away.detail,
                )
                is_told = True
            time.sleep(_ASK_AGAIN_S)  # Nothing runs beside it: no node has been forked.


def _check_promises(database: Database, config: BrokerConfig) -> None:
    """Raise ConfigError if acknowledged data is lost, or would be lost by the next fail-over."""
    if loss := read_history(database).loss:
        raise ConfigError(f"--storage: {ClusterHalted(loss)}")
    replication = read_replication(database)
    if replication.may_lose and not config.view(ClusterConfig).cluster_allow_async_storage:
        raise ConfigError(
            f"--storage: the database has {replication.standbys} standbys, none of them"
            " synchronous: a fail-over loses what was acknowledged last. Set"
            " synchronous_standby_names there, to 'ANY 1 (*)' for example; or accept that, with"
            " --allow-async-storage."
        )


def open_catalog(url: str) -> Catalog:
    """Return the catalog of a cluster. Raises ConfigError, CatalogFailure, CatalogUnavailable.

    ConfigError: `url` is no URL of a database, or what reads it is not installed.
    """
    return Catalog(None, is_shared=True, database=_database(url))


def _database(url: str, owner: str | None = None) -> PostgresDatabase:
    """Return the database of a cluster, not opened yet. Raises ConfigError.

    `owner`: as `PostgresDatabase` has it.
    """
    try:
        from magnetar.storage.postgres_database import PostgresDatabase
    except ImportError as missing:
        raise ConfigError(
            f"--storage needs {missing.name}: pip install 'magnetar[cluster]'"
        ) from None
    try:
        return PostgresDatabase(url, owner=owner)
    except CatalogFailure as failure:  # `url` is no URL of a database.
        raise ConfigError(str(failure)) from None


def node_of(node_id: int, place: Place) -> Broker:
    """Return the broker of one node, in its own process. Closes the sockets of the others."""
    close_others(node_id, place.nodes)
    for other_id, bound in place.peers.items():
        if other_id != node_id:
            bound.close()
    own, bound = place.nodes[node_id], place.peers[node_id]
    found = ClusterMembers()
    host = _peer_host(own, bound)
    tls = _tls(own, host)
    joining = Joining(
        found,
        (host, bound.getsockname()[1]),
        place.owner,
        partial(open_catalog, place.url),
        data_dir_of(own.config),
        has_tls=tls is not None,
    )
    return Broker(
        own.config,
        on_failure=partial(_end, node_id, place.url),
        open_storage=partial(_open_storage, place.url, place.objects),
        bind=own.bind(),
        peer_network=TcpNetwork(bound, found.peer_address, tls),
        joining=joining,
    )


def _end(node_id: int, url: str, failure: BaseException) -> None:
    """End the process; if the database has lost something, the whole cluster halts."""
    if isinstance(failure, CommitsLost):
        try:
            with closing(open_catalog(url)) as catalog:
                halt(catalog.database, f"node {node_id}: {failure}")
        except (CatalogUnavailable, CatalogFailure) as away:
            # The next start finds the loss again, by what this node has written down.
            _log.error("the other nodes could not be told of the loss", reason=str(away))
    end_process(failure)


def _peer_host(node: WorkerNode, bound: socket.socket) -> str:
    """Return the host that peers dial: no peer can dial "every interface"."""
    text = node.config.view(ClusterConfig).peers_listener
    # A name as it is written: certificates have names.
    host = parse_address(text, "peers.listener")[0] if text else bound.getsockname()[0]
    is_every = host in ("", "0.0.0.0", "::")  # noqa: S104  # compared
    return node.listeners[0].advertised_host if is_every else host


def _tls(node: WorkerNode, host: str) -> PeerTls | None:
    """Return the TLS of a node among its peers, which reach it at `host`. Raises ConfigError."""
    name, protocol = protocol_of_peers(node.config)
    if not protocol.has_tls:
        return None
    return PeerTls(lambda: listener_security(node.config, name), host)


def _lock(data_dir: Path) -> Callable[[], None]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return lock_file(str(data_dir / _LOCK), create=True)
    except BlockingIOError:
        raise ConfigError(
            f"{data_dir} is in use by another node. Name another directory with --data-dir, or"
            " serve several nodes of this machine with --workers."
        ) from None
    except OSError as error:
        raise unusable_directory(data_dir, error) from error


def _claimed(catalog: Catalog, owner: str, count: int, asked: int | None) -> list[int]:
    """Return the ids of the nodes. Waits for the end of a lease that another place does not renew.

    Raises ConfigError.
    """
    deadline = time.monotonic() + _ID_IN_USE_S
    is_told = False
    while True:
        try:
            return claim(catalog, owner, count, asked)
        except IdInUse as used:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"--node-id {asked}: {used}. Choose another id, or leave --node-id out."
                ) from None
            if not is_told:
                _log.info("the id is in use: waiting for the end of its lease", reason=str(used))
                is_told = True
            time.sleep(1.0)  # The lease ends within six seconds, if it is not renewed.


def _bind_peers(config: BrokerConfig, number: int) -> socket.socket:
    """Take the address at which peers reach a node. Raises ConfigError."""
    text = config.view(ClusterConfig).peers_listener
    if text:
        host, port = parse_address(text, "peers.listener")
    else:
        host, port = parse_listeners(config)[0].host, 0
    try:
        return socket_at(host, port + number if port else 0)
    except OSError as error:
        raise ConfigError(
            f"peers.listener: cannot listen on {host}:{port}: {error.strerror}"
        ) from error


def _open_storage(
    url: str,
    bucket: str,
    config: BrokerConfig,
    clock: Clock,
    fail: Callable[[BaseException], None],
) -> tuple[Logs, Catalog]:
    """Return the node's logs, not connected yet, and the catalog. Raises ConfigError."""
    from logstore.remote.postgres_store import PostgresStore
    from magnetar.storage.remote_logs import RemoteLogs

    catalog = open_catalog(url)
    objects = open_bucket(bucket) if bucket else None
    prefix = objects_prefix(catalog)
    store = PostgresStore(url)
    logs = RemoteLogs(store, config, clock, fail, objects=objects, objects_prefix=prefix)
    return logs, catalog


def open_bucket(url: str) -> Bucket:
    """Return the bucket of a cluster. Raises ConfigError."""
    try:
        from logstore.remote.bucket import Bucket, UnusableUrl
    except ImportError as missing:
        raise ConfigError(
            f"--objects needs {missing.name}: pip install 'magnetar[cluster]'"
        ) from None
    try:
        return Bucket(url)
    except UnusableUrl as unusable:
        raise ConfigError(f"--objects: {unusable}") from None
