"""The broker's settings: Kafka's names and defaults, and a few of magnetar's own.

`since`: the release, Kafka's or magnetar's, in which a name appeared. Where a default differs from
Kafka's the doc says so and why.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.config import compression
from magnetar.config.cluster import ClusterConfig
from magnetar.config.disk import DiskConfig
from magnetar.config.observing import ObservingConfig
from magnetar.config.quotas import QUOTA_SETTINGS
from magnetar.config.security import SECURITY_SETTINGS
from magnetar.config.setting import (
    Config,
    ConfigType,
    boolean,
    double,
    integer,
    long,
    optional_integer,
    optional_string,
    string,
    words,
)
from magnetar.config.tokens import TOKEN_SETTINGS
from wire.types import INT32_MAX, INT64_MAX

_OWN = "magnetar 0.1"
_KIP_1030 = "KIP-1030"
CLEANUP_POLICIES = ("delete", "compact")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

#: Tables whose settings a broker has, and whose parts read them through `view`.
_TABLES = (
    SECURITY_SETTINGS,
    TOKEN_SETTINGS,
    QUOTA_SETTINGS,
    *(table.settings for table in (ClusterConfig, DiskConfig, ObservingConfig)),
)


class BrokerConfig(
    Config, stored={name: setting for table in _TABLES for name, setting in table.items()}
):
    """The settings of one broker, read as attributes: `config.message_max_bytes`.

    Those of `magnetar.config.security` and `quotas` are read through `view` and by listener.

    Some change while it runs (`magnetar.config.dynamic`): read them when they are needed.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        super().__init__(values)
        #: What file and flags gave.
        self.static: dict[str, object] = dict(values or {})
        #: Texts set at run time: for this broker, and for every broker of the cluster.
        self.own_texts: dict[str, str] = {}
        self.shared_texts: dict[str, str] = {}

    # The node and its addresses.
    node_id = integer(
        1,
        minimum=0,
        since="3.0",
        doc="Number of this broker in the cluster. Older name: broker.id.",
    )
    # Declared, not only translated by `load`: Kafka's tools show both names.
    broker_id = integer(1, minimum=0, since="0.8", doc="The older name of node.id.")
    broker_rack = optional_string(since="0.10", doc="Rack shown to clients in Metadata.")
    log_dirs = words([], since="0.8", doc="The data directory; exactly one. Other name: log.dir.")
    # A name of its own, as in Kafka: `load` carries it over to log.dirs, which the rest of the
    # broker reads.
    log_dir = string("data", since="0.8", doc="The data directory where log.dirs is not given.")
    durability = string(
        "fsync",
        one_of=("fsync", "page-cache", "memory"),
        since=_OWN,
        doc="What an acknowledgement means. fsync: on disk. page-cache: with the operating system,"
        " survives the end of the process but not a power loss. memory: nothing is kept.",
    )

    journal_damage_accept = boolean(
        False, since=_OWN, doc="Start with what is left of a damaged journal. Meant for one start."
    )

    # Connections.
    socket_request_max_bytes = integer(
        104857600,
        minimum=1,
        since="0.8",
        doc="Largest request; a larger one closes its connection.",
    )
    socket_send_buffer_bytes = integer(
        -1,
        minimum=-1,
        since="0.8",
        doc="SO_SNDBUF; -1 leaves it to the operating system, which sizes it as it goes. Kafka's"
        " default of 102400 switches that off.",
    )
    socket_receive_buffer_bytes = integer(
        -1, minimum=-1, since="0.8", doc="SO_RCVBUF; -1 as for socket.send.buffer.bytes."
    )
    socket_listen_backlog_size = integer(
        50, minimum=1, since="3.1", doc="Connections that may wait to be accepted."
    )
    max_connections = integer(
        INT32_MAX,
        minimum=1,
        since="2.4",
        doc="Connections at once; one more is closed at once. A quarter of the files that the"
        " process may have open is kept for logs, whatever this says.",
    )
    max_connections_per_ip = integer(
        INT32_MAX, minimum=0, since="0.8.2", doc="Connections at once from one address."
    )
    connections_max_idle_ms = long(
        600000,
        minimum=-1,
        since="0.9",
        doc="A connection without traffic for so long is closed, as is one whose client takes less"
        " than 64 KB of a waiting answer in that time; negative: never.",
    )
    # Bounded by default: one client that pipelines large batches would otherwise decide how much
    # memory the broker has.
    queued_max_request_bytes = long(
        268435456,
        minimum=-1,
        since="0.11",
        doc="Memory for requests that are being received or worked on; beyond it no more is read."
        " Apart from that, memory for requests that wait as long as their clients like; beyond it"
        " such a request closes its connection, unless it is small. One of thousands of elements"
        " waits for its place there, in memory of half of that. Apart from that, memory for answers"
        " that clients have not taken yet; beyond it a fetch brings 64 KB at a time, other answers"
        " of hundreds of elements wait, 16 at most, and clients that take less than 64 KB in 10 s"
        " are disconnected, the slowest first, until a quarter is free."
        " -1: no limit, which is Kafka's default and lets a few clients exhaust the memory.",
    )
    connection_max_in_flight_requests = integer(
        64,
        minimum=1,
        since=_OWN,
        doc="Requests of one connection that may be unanswered before no more is read from it.",
    )

    # Topics.
    num_partitions = integer(
        1, minimum=1, since="0.7", doc="Partitions of a topic whose creation names none."
    )
    default_replication_factor = integer(
        1, minimum=1, maximum=32767, since="0.8", doc="Replication factor where none is named."
    )
    min_insync_replicas = integer(
        1, minimum=1, since="0.9", doc="Shown and stored: replicas hold no copies.", acts=False
    )
    auto_create_topics_enable = boolean(
        True, since="0.8", doc="Whether asking for a topic's metadata may create the topic."
    )
    delete_topic_enable = boolean(True, since="0.8.2", doc="Whether topics can be deleted.")
    unclean_leader_election_enable = boolean(
        False, since="0.8.2", doc="Shown only: replicas hold no copies.", acts=False
    )
    max_request_partition_size_limit = integer(
        2000, minimum=1, since="3.8", doc="Partitions of one DescribeTopicPartitions."
    )

    # Records and logs: the defaults of topics.
    max_decompressed_message_bytes = integer(2147483639, minimum=1, since="4.4", doc="Per topic.")
    message_max_bytes = integer(
        1048588, minimum=0, since="0.8", doc="Largest record batch, its 12 bytes of frame included."
    )
    compression_type = compression.compression_type()
    compression_gzip_level = compression.gzip_level()
    compression_lz4_level = compression.lz4_level()
    compression_zstd_level = compression.zstd_level()
    # KIP-1030 raised the minimum: tiny segments exhaust the limit of open files.
    log_segment_bytes = integer(
        1073741824, minimum=1048576, rule=_KIP_1030, since="0.7", doc="Size at which a log rolls."
    )
    # Unset rather than 0, so that the coarser name below counts: what is given in a finer unit
    # wins, as in Kafka.
    log_roll_ms = optional_integer(minimum=1, since="0.8.2", doc="Age at which a log rolls.")
    log_roll_hours = integer(
        168, minimum=1, since="0.7", doc="Age at which a log rolls, where log.roll.ms is not given."
    )
    log_index_interval_bytes = integer(
        4096, minimum=0, since="0.8", doc="Bytes of log between two index entries."
    )
    log_index_size_max_bytes = integer(
        10485760, minimum=4, since="0.8", doc="Largest index file; when it is full the log rolls."
    )
    log_message_timestamp_type = string(
        "CreateTime",
        one_of=TIMESTAMP_TYPES,
        since="0.10",
        doc="Whether a record's timestamp is the producer's or the broker's.",
    )
    log_message_timestamp_before_max_ms = long(
        INT64_MAX, minimum=0, since="3.6", doc="How far a timestamp may lie behind the clock."
    )
    log_message_timestamp_after_max_ms = long(
        3600000, minimum=0, since="3.6", doc="How far a timestamp may lie ahead of the clock."
    )
    log_preallocate = boolean(
        False, since="0.8.3", doc="Stored and shown: files grow as they are written.", acts=False
    )
    log_flush_interval_messages = long(
        INT64_MAX,
        minimum=1,
        since="0.8",
        doc="With durability=page-cache: records after which all of a log is synced.",
    )
    log_flush_interval_ms = optional_integer(
        since="0.8",
        doc="With durability=page-cache: the time after which all of a log is synced.",
    )
    log_flush_scheduler_interval_ms = long(
        INT64_MAX, since="0.8", doc="How often to look for logs whose flush.ms has passed."
    )
    # 0 would delete every segment as soon as it rolls; Kafka refuses it as well.
    log_retention_ms = optional_integer(
        minimum=-1,
        excluding=0,
        since="0.8.2",
        doc="Age of its newest record at which a segment is deleted; -1: never.",
    )
    log_retention_minutes = optional_integer(
        maximum=INT32_MAX,
        excluding=0,
        type=ConfigType.INT,
        since="0.8",
        doc="The same in minutes, where log.retention.ms is not given.",
    )
    log_retention_hours = integer(
        168, since="0.7", doc="The same in hours, where the finer ones are not given."
    )
    log_retention_bytes = long(
        -1,
        since="0.7",
        doc="Size of a partition that is kept: older segments are deleted; -1: all.",
    )
    log_retention_check_interval_ms = long(
        300000,
        minimum=1,
        since="0.8",
        doc="How often logs are checked for retention; the first time after 30 s at most.",
    )
    log_segment_delete_delay_ms = long(
        60000,
        minimum=0,
        since="0.8",
        doc="How long files of segments and topics are kept that are deleted or replaced.",
    )
    log_cleanup_policy = words(
        ["delete"],
        one_of=CLEANUP_POLICIES,
        since="0.8.1",
        doc="delete: old segments are deleted by age and size. compact: of each key the last"
        " record stays. Both may be given.",
    )
    log_cleaner_delete_retention_ms = long(
        86400000, minimum=0, since="0.8.1", doc="How long tombstones and markers are kept."
    )
    log_cleaner_min_compaction_lag_ms = long(
        0, minimum=0, since="0.10.1", doc="Age before which a record is not compacted."
    )
    log_cleaner_max_compaction_lag_ms = long(
        INT64_MAX, minimum=1, since="2.3", doc="Age at which a record is compacted."
    )
    log_cleaner_min_cleanable_ratio = double(
        0.5,
        minimum=0,
        maximum=1,
        since="0.8.1",
        doc="Part of a log that must be uncompacted before compaction begins.",
    )
    log_cleaner_enable = boolean(True, since="0.9", doc="Whether logs are compacted at all.")
    # Kafka's minimum is 0 as well: a running broker can stop compaction without a restart.
    log_cleaner_threads = integer(
        1, minimum=0, since="0.8.1", doc="Threads that compact: 0 is none, more than one are one."
    )
    log_cleaner_backoff_ms = long(
        15000, minimum=0, since="0.8.1", doc="How often logs are looked at when none is dirty."
    )
    log_cleaner_dedupe_buffer_size = long(
        134217728,
        minimum=1048576,
        since="0.8.1",
        doc="Memory for the keys of one log's compaction, 24 bytes each. It is taken as needed.",
    )
    log_cleaner_io_buffer_load_factor = double(
        0.9, minimum=0, maximum=1, since="0.8.1", doc="Part of that memory that may be filled."
    )
    log_cleaner_io_max_bytes_per_second = double(
        1.7976931348623157e308,
        since="0.8.1",
        doc="Most bytes that compaction reads and writes in a second.",
    )

    # Fetching.
    # Not a hard limit: a first batch that is larger is sent whole, or its reader would never pass
    # it (KIP-74).
    fetch_max_bytes = integer(
        57671680, minimum=1024, since="2.3", doc="Most bytes of records in one Fetch response."
    )
    max_incremental_fetch_session_cache_slots = integer(
        1000, minimum=0, since="1.1", doc="Fetch sessions that are remembered (KIP-227)."
    )

    metrics_listen = string(
        "",
        since=_OWN,
        doc="HOST:PORT on which GET /metrics answers Prometheus; empty: nowhere. See metrics.md.",
    )

    # Producers and transactions.
    # Longer than clients retry: a producer that is forgotten earlier could write a batch twice.
    producer_id_expiration_ms = integer(
        86400000, minimum=1, since="3.4", doc="How long the state of a silent producer is kept."
    )
    producer_id_expiration_check_interval_ms = integer(
        600000, minimum=1, since="3.4", doc="How often partitions look for silent producers."
    )
    # An open transaction holds back read_committed readers, so this also bounds how long a dead
    # producer can do so.
    transaction_max_timeout_ms = integer(
        900000, minimum=1, since="0.11", doc="Longest transaction timeout a producer may ask for."
    )
    transaction_healing_interval_ms = integer(
        10000,
        minimum=0,
        since=_OWN,
        doc="How often open transactions of all partitions are compared with their coordinators, so"
        " that none hangs. 0: only at the start.",
    )
    # A group costs memory for as long as it lives, and any client can create one by naming it.
    max_groups = integer(
        100_000,
        minimum=0,
        since=_OWN,
        doc="Most groups with members, and most with offsets; 0: no limit. One beyond it is refused"
        " with POLICY_VIOLATION.",
    )
    joint_transactions_separator = string(
        "~>",
        since=_OWN,
        doc="A transactional id PARENT~>CHILD votes for its parent's decision; empty: none does.",
    )
    joint_vote_timeout_ms = integer(
        900000,
        minimum=1,
        since=_OWN,
        doc="How long a vote waits for its parent to decide, after the last begin or vote of a"
        " child of the same parent.",
    )
    joint_child_expiration_ms = integer(
        3600000, minimum=1, since=_OWN, doc="How long an unused child's id is remembered."
    )
    # CONCURRENT_TRANSACTIONS, because every client retries on it: no error of Kafka's means "later"
    # for a begin.
    max_active_transactions = integer(
        0,
        minimum=0,
        since=_OWN,
        doc="Most transactions open at once; 0: no limit. A begin beyond it is answered"
        " CONCURRENT_TRANSACTIONS, which clients wait out.",
    )
    transaction_offset_conflict_detection_enable = boolean(
        False,
        since=_OWN,
        doc="Refuse offsets that another open transaction would commit too: the second of the two"
        " has to abort. Off, as in Kafka, where the last commit wins.",
    )
    transactional_id_expiration_ms = integer(
        604800000, minimum=1, since="0.11", doc="How long an unused transactional id is remembered."
    )
    # A change after the first start would move ids to other partitions, away from their state; so
    # the topic's own count is what counts once it exists.
    transaction_state_log_num_partitions = integer(
        50, minimum=1, since="0.11", doc="Partitions of __transaction_state."
    )
    transaction_state_log_replication_factor = integer(
        3,
        minimum=1,
        maximum=32767,
        type=ConfigType.SHORT,
        since="0.11",
        doc="Of its topic in a cluster, as far as there are nodes. Elsewhere it is 1.",
    )
    transaction_state_log_segment_bytes = integer(
        104857600, minimum=1, since="0.11", doc="Segment size of __transaction_state."
    )
    transaction_state_log_min_isr = integer(
        2, minimum=1, since="0.11", doc="Shown: replicas hold no copies.", acts=False
    )
    transaction_partition_verification_enable = boolean(
        True, since="3.6", doc="Shown: every transactional batch is verified.", acts=False
    )

    # Groups.
    # Below it, a pause of a client's garbage collector would look like its death.
    group_min_session_timeout_ms = integer(
        6000, since="0.9", doc="Shortest session timeout a member may ask for."
    )
    group_max_session_timeout_ms = integer(
        1800000, since="0.9", doc="Longest session timeout a member may ask for."
    )
    group_max_size = integer(INT32_MAX, minimum=1, since="2.2", doc="Most members of a group.")
    group_initial_rebalance_delay_ms = integer(
        0,
        minimum=0,
        since="0.11",
        doc="How long the first join of an empty group waits for more members. Kafka's default is"
        " 3000, for which every consumer that is started alone pays.",
    )
    group_coordinator_rebalance_protocols = words(
        ["classic", "consumer", "streams"],
        one_of=("classic", "consumer", "share", "streams"),
        since="3.7",
        doc="Group protocols that are served: consumer, where it is named. classic always is, share"
        " and streams are not yet.",
    )
    group_consumer_session_timeout_ms = integer(
        45000, minimum=1, since="3.7", doc="How long a member of a consumer group may be silent."
    )
    group_consumer_min_session_timeout_ms = integer(
        45000, minimum=1, since="3.7", doc="Least that a group may be configured with."
    )
    group_consumer_max_session_timeout_ms = integer(
        60000, minimum=1, since="3.7", doc="Most that a group may be configured with."
    )
    group_consumer_heartbeat_interval_ms = integer(
        5000, minimum=1, since="3.7", doc="How often members are told to send heartbeats."
    )
    group_consumer_min_heartbeat_interval_ms = integer(
        5000, minimum=1, since="3.7", doc="Least that a group may be configured with."
    )
    group_consumer_max_heartbeat_interval_ms = integer(
        15000, minimum=1, since="3.7", doc="Most that a group may be configured with."
    )
    group_consumer_max_size = integer(
        INT32_MAX, minimum=1, since="3.7", doc="Most members of a consumer group."
    )
    group_consumer_assignors = words(
        ["uniform", "range"],
        one_of=("uniform", "range"),
        since="3.7",
        doc="Assignors that members may ask for; the first is for groups whose members name none.",
    )
    group_consumer_migration_policy = string(
        "bidirectional",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
        since="3.8",
        doc="Which groups are turned into the other kind while they have members: upgrade, to a"
        " consumer group when the first such member joins; downgrade, to a classic group when the"
        " last one leaves.",
    )
    group_consumer_assignment_interval_ms = integer(
        0,
        minimum=0,
        since="4.3",
        doc="Least time between two assignments of a consumer group. A member that joins meanwhile"
        " waits until its next heartbeat. Kafka's default is 1000, as is 0 above 100 members.",
    )
    group_consumer_min_assignment_interval_ms = integer(
        0, minimum=0, since="4.3", doc="Least that a group may be configured with."
    )
    group_consumer_max_assignment_interval_ms = integer(
        15000, minimum=0, since="4.3", doc="Most that a group may be configured with."
    )
    offset_metadata_max_bytes = integer(
        4096, minimum=0, since="0.8.1", doc="Longest metadata text of a committed offset."
    )
    offsets_commit_timeout_ms = integer(
        5000, minimum=1, since="0.8.2", doc="How long an offset commit may wait for the disk."
    )
    offsets_retention_minutes = integer(
        10080, minimum=1, since="0.9", doc="How long offsets of an empty group are kept."
    )
    offsets_retention_check_interval_ms = long(
        600000, minimum=1, since="0.8.1", doc="How often offsets are checked for expiry."
    )
    offsets_topic_num_partitions = integer(
        50, minimum=1, since="0.8.1", doc="Partitions of __consumer_offsets."
    )
    offsets_topic_replication_factor = integer(
        3,
        minimum=1,
        maximum=32767,
        type=ConfigType.SHORT,
        since="0.8.1",
        doc="Of its topic in a cluster, as far as there are nodes. Elsewhere it is 1.",
    )
    offsets_topic_segment_bytes = integer(
        104857600, minimum=1, since="0.8.1", doc="Segment size of __consumer_offsets."
    )
