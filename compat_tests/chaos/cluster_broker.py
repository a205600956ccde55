"""The nodes of a cluster as one broker of the tests: started, killed and read together."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

from compat_tests.brokers import SETTINGS, Broker
from compat_tests.buckets import bucket_environment
from compat_tests.chaos.database import Database
from compat_tests.clusters import Node
from tools.tcp_proxy import TcpProxy

NODES = (1, 2, 3)


class ClusterBroker(Broker):
    """Three nodes, each with a proxy of its own to the database."""

    kind = "magnetar"

    def __init__(self, directory: Path, *, has_objects: bool) -> None:
        """`directory` must be one that every user may enter."""
        super().__init__(directory)
        self._has_objects = has_objects
        self._stack = ExitStack()
        self.database = Database(directory)
        self.proxies: dict[int, TcpProxy] = {}
        self.nodes: dict[int, Node] = {}
        #: The way to the bucket; None where there is none.
        self.bucket: TcpProxy | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(self.node_addresses)

    @property
    def node_count(self) -> int:
        return len(NODES)

    @property
    def node_addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    @property
    def log_directory(self) -> Path:
        return self.directory

    @property
    def pid(self) -> int:
        return self.nodes[1].pid()

    def start(self) -> None:
        self.spawn()
        for node in self.nodes.values():
            node.await_ready()

    def spawn(self) -> None:
        self._stack.callback(self.database.end)
        self.database.start()
        self.database.on_moved = self._point
        settings = dict(SETTINGS)
        if self._has_objects:
            settings["cluster.objects"] = self._serve_bucket()
        for node_id in NODES:
            proxy = self.proxies[node_id] = TcpProxy(self.database.port)
            self._stack.callback(proxy.close)
            url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
            directory = self.directory / f"node-{node_id}"
            node = self.nodes[node_id] = Node(node_id, url, directory, settings)
            self._stack.callback(node.kill_host)
            node.spawn()

    def heal(self) -> None:
        """Let everything work again."""
        for proxy in (*self.proxies.values(), *([self.bucket] if self.bucket else [])):
            proxy.heal()
        for node in self.nodes.values():
            if not node.is_running:
                node.spawn()
                continue
            for pid in node.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def output(self) -> str:
        return "\n".join(
            f"node {each.node_id}: {each.output[-3000:]}" for each in self.nodes.values()
        )

    def kill(self) -> None:
        self._stack.close()

    def stop(self) -> None:
        self._stack.close()

    def _point(self, port: int) -> None:
        for proxy in self.proxies.values():
            proxy.point_at(port)

    def _serve_bucket(self) -> str:
        """Serve a bucket behind a proxy; return its URL."""
        import boto3
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        self._stack.callback(server.stop)
        _, port = server.get_host_and_port()
        self.bucket = TcpProxy(port)
        self._stack.callback(self.bucket.close)
        os.environ |= bucket_environment(f"http://127.0.0.1:{self.bucket.port}")
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="chaos")
        return "s3://chaos/cluster"
