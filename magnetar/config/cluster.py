"""The settings of a node of a cluster: where the cluster is kept, and where its peers reach it."""

from __future__ import annotations

from magnetar.config.security import password
from magnetar.config.setting import Config, boolean, integer, long, optional_string, string


class ClusterConfig(Config):
    """What `serve --storage` needs besides the settings of every broker."""

    cluster_storage = password(
        since="magnetar 0.1",
        doc="The PostgreSQL database that all nodes of a cluster share, as postgresql://USER@HOST"
        ":PORT/DATABASE; --storage stands for it. Without it a broker keeps everything in its data"
        " directory. See cluster.md.",
    )
    cluster_objects = string(
        "",
        since="magnetar 0.1",
        doc="The bucket to which older batches move from the database, as s3://BUCKET/PREFIX,"
        " gs://..., az://... or file:///DIRECTORY; --objects stands for it. Credentials come from"
        " where each cloud's tools find them. The first node that names one decides for the"
        " cluster. Without it everything stays in the database.",
    )
    cluster_objects_after_ms = long(
        600_000,
        minimum=0,
        since="magnetar 0.1",
        doc="How long batches stay in the database at most before they move to the bucket. They"
        " move sooner where 8 MiB of a partition have come together. Less keeps the database"
        " smaller, and makes more and smaller objects.",
    )
    cluster_objects_backlog_max_bytes = long(
        16 * 1024 * 1024 * 1024,
        minimum=0,
        since="magnetar 0.1",
        doc="Bytes of the partitions that a node leads which may wait in the database for a bucket"
        " that does not answer, or is too slow. Above it clients' records are refused with"
        " KAFKA_STORAGE_ERROR, which they try again, until an eighth of it has moved. Up to 16 MiB"
        " of each partition, and the coordinators' logs, do not count. 0: no bound.",
    )
    cluster_allow_async_storage = boolean(
        False,
        since="magnetar 0.1",
        doc="Whether a node serves on a database whose standbys are all asynchronous, so that a"
        " fail-over loses what was acknowledged last; --allow-async-storage stands for it. Such a"
        " loss halts the cluster until `magnetar cluster repair --accept-loss`.",
    )
    initial_broker_registration_timeout_ms = integer(
        60_000,
        since="2.8",
        doc="How long `serve` waits, when it starts, for a database that is away, or too slow to"
        " answer. Then it ends, as it does at once where the database refuses it.",
    )
    peers_listener = string(
        "",
        since="magnetar 0.1",
        doc="HOST:PORT at which the other nodes of the cluster reach this one. Empty: the host of"
        " the first listener, and a free port.",
    )
    security_inter_broker_protocol = string(
        "PLAINTEXT",
        since="0.8.3",
        doc="SSL: the nodes of a cluster speak TLS to each other, and each shows a certificate, by"
        " the settings of ssl.*. The SASL of SASL_SSL and SASL_PLAINTEXT is the proof of the"
        " cluster's secret, which is made in any case. The same on all nodes. See cluster.md.",
    )
    inter_broker_listener_name = optional_string(
        since="0.10.2",
        doc="Name under which listener.security.protocol.map has the protocol between the nodes of"
        " a cluster, in place of security.inter.broker.protocol, and listener.name.NAME.ssl.* its"
        " settings. Their address is peers.listener.",
    )
