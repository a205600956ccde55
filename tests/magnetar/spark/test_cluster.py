"""What the sink says if no broker answers, or if another kind of server does."""

from __future__ import annotations

import socket
import threading

import pytest

from magnetar.spark.cluster import Cluster
from magnetar.spark.errors import SinkError
from magnetar.spark.query_parent import QueryParent


def test_a_broker_that_is_away_for_too_long_is_named_with_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = "{}:{}".format(*closed.getsockname())
    with Cluster(address, timeout_ms=100) as cluster:
        with pytest.raises(SinkError, match=rf"100 ms \(the option brokerTimeoutMs\).*{address}"):
            cluster.promises()
        with pytest.raises(SinkError, match="brokerTimeoutMs"):
            QueryParent(cluster, "orders").recorded()
        # What cannot be aborted ends with its timeout: the reason why it failed is told instead.
        QueryParent(cluster, "orders").abort()


def test_somebody_who_speaks_another_protocol_is_not_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with (
            Cluster(address, timeout_ms=60_000) as cluster,
            pytest.raises(SinkError, match="does not speak Kafka's protocol"),
        ):
            cluster.promises()
        answering.join()
