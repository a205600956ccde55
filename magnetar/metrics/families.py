"""The metrics by name: kind, labels and meaning. docs/metrics.md is this table; a test compares.

Names follow Prometheus: units last, counters end in `_total`. Every label has few values, at most
`TOPICS_MAX`, or belongs to a metric that should not exist in a healthy broker.
"""

from __future__ import annotations

from typing import NamedTuple

#: Most topics that are named, those that lag most; the sum has all of them.
TOPICS_MAX = 100

#: Most groups that are named, those that lag most.
GROUPS_MAX = 100
#: Most partitions, and most committed offsets, that have series of their own.
SERIES_MAX = 10_000

#: A transaction that is open for less is not named: a busy broker has another one at every scrape,
#: and each name would be a time series for good.
NAMED_FROM_SECONDS = 10

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = {
    family.name: family
    for family in (
        Family("magnetar_transactions_open", GAUGE, "Transactions that are Ongoing."),
        Family("magnetar_transactional_ids", GAUGE, "Transactional ids that are known."),
        Family(
            "magnetar_oldest_open_transaction_seconds",
            GAUGE,
            "Age of the oldest open transaction, by its names from"
            f" {NAMED_FROM_SECONDS} seconds on. Absent where none is open.",
            ("transactional_id", "txn_id"),
        ),
        Family(
            "magnetar_votes_waiting",
            GAUGE,
            "Transactions of children that have voted, and wait for their parents to decide.",
        ),
        Family(
            "magnetar_oldest_vote_seconds",
            GAUGE,
            "How long the oldest of these votes has waited, by its name from"
            f" {NAMED_FROM_SECONDS} seconds on. Absent where none waits.",
            ("transactional_id",),
        ),
        Family(
            "magnetar_votes_expired_total",
            COUNTER,
            "Votes that were not decided within joint.vote.timeout.ms, so that they were aborted.",
        ),
        Family(
            "magnetar_transactions_timed_out_total",
            COUNTER,
            "Transactions that their timeout has aborted.",
        ),
        Family(
            "magnetar_transactions_healed_total",
            COUNTER,
            "Open transactions of a partition that no coordinator would have ended, by remedy.",
            ("remedy",),
        ),
        Family(
            "magnetar_late_settlements_total",
            COUNTER,
            "EndTxn answers given before all markers were durable: a participant was slow.",
        ),
        Family(
            "magnetar_fenced_markers_total",
            COUNTER,
            "Markers that met a later coordinator's epoch in a partition, and took it.",
        ),
        Family(
            "magnetar_unreadable_reads_total",
            COUNTER,
            "Reads that failed because the disk could not read a part of a segment. The partitions"
            " are in the broker's log.",
        ),
        Family(
            "magnetar_full_disk_refusals_total",
            COUNTER,
            "Clients' batches that were refused because the disk was full (log.dir.reserve.bytes),"
            " or too much waited for a cluster's bucket (cluster.objects.backlog.max.bytes).",
        ),
        Family(
            "magnetar_stable_offset_lag_records",
            GAUGE,
            "Offsets between last stable offset and high watermark, summed over a topic's"
            f" partitions. The {TOPICS_MAX} topics that lag most; those that do not are left out.",
            ("topic",),
        ),
        Family(
            "magnetar_stable_offset_lag_records_sum",
            GAUGE,
            "The same, summed over all topics.",
        ),
        Family("magnetar_topics", GAUGE, "Topics, internal ones among them."),
        Family("magnetar_partitions", GAUGE, "Partitions of all topics."),
        Family(
            "magnetar_groups",
            GAUGE,
            "Groups by protocol, classic or consumer, and state.",
            ("protocol", "state"),
        ),
        Family(
            "magnetar_group_member_bytes",
            GAUGE,
            "Memory of what the members of groups have said, an estimate. Bounded by"
            " queued.max.request.bytes.",
        ),
        Family(
            "magnetar_group_lag_records",
            GAUGE,
            "Offsets between a group's committed offsets and the ends of the partitions, summed."
            f" The {GROUPS_MAX} groups that lag most; those that do not are left out.",
            ("group",),
        ),
        Family("magnetar_group_lag_records_sum", GAUGE, "The same, summed over all groups."),
        Family(
            "magnetar_series_left_out",
            GAUGE,
            f"Partitions, and offsets of groups, beyond the {SERIES_MAX} of each that are named in"
            " kafka_topic_* and kafka_consumergroup_*.",
        ),
        Family(
            "magnetar_sync_seconds",
            HISTOGRAM,
            "How long syncs to the disk took. One covers all that was written before it began.",
        ),
        Family(
            "magnetar_database_bytes",
            GAUGE,
            "Batches in a cluster's database, of the partitions that this node leads, by what takes"
            " them out of it: a bucket, or retention and compaction (retention). Up to a segment"
            " more for each partition. Absent outside a cluster.",
            ("until",),
        ),
        Family("magnetar_connections", GAUGE, "Clients that are connected."),
        Family(
            "magnetar_handshakes_open",
            GAUGE,
            "Clients of listeners with TLS that are connected and not encrypted yet.",
        ),
        Family(
            "magnetar_handshakes_total",
            COUNTER,
            "Handshakes of TLS by how they ended: done, failed, plain-text (the client spoke no"
            " TLS), timeout, gone (the client closed before it began).",
            ("outcome",),
        ),
        Family(
            "magnetar_logins_total",
            COUNTER,
            "Logins by mechanism and outcome: succeeded or failed.",
            ("mechanism", "outcome"),
        ),
        Family("magnetar_received_bytes_total", COUNTER, "Bytes that clients have sent."),
        Family("magnetar_sent_bytes_total", COUNTER, "Bytes that were answered to clients."),
        Family(
            "magnetar_requests_total", COUNTER, "Requests by API, since its first one.", ("api",)
        ),
        Family(
            "magnetar_request_seconds",
            HISTOGRAM,
            "How long requests took by API, from their decoding until their answers were known:"
            " also what they waited for syncs, for records, or for other members of a group. Bounds"
            " are powers of two of nanoseconds. APIs that were not asked are left out.",
            ("api",),
        ),
        Family(
            "magnetar_refusals_total",
            COUNTER,
            "Refusals by API and error code: of whole requests, and of single partitions of"
            " Produce, Fetch and AddPartitionsToTxn. Retriable ones count too.",
            ("api", "error"),
        ),
        Family(
            "magnetar_telemetry_clients",
            GAUGE,
            "Clients that have asked which of their metrics to push (KIP-714).",
        ),
        Family(
            "magnetar_telemetry_left_out_total",
            COUNTER,
            "Samples of clients that were not kept: more than one client may have.",
        ),
        Family(
            "magnetar_throttled_total",
            COUNTER,
            "Requests and connections that a quota has paused, by the quota's name.",
            ("quota",),
        ),
        Family(
            "magnetar_throttle_seconds_total",
            COUNTER,
            "How long these pauses were, as clients were told.",
            ("quota",),
        ),
        Family(
            "magnetar_request_memory_bytes",
            GAUGE,
            "Memory that requests hold: worked on (in_flight), being received (partial), waiting as"
            " long as their client likes (waiting), or answers not taken yet (answers).",
            ("account",),
        ),
        Family(
            "magnetar_blocking_jobs",
            GAUGE,
            "Work that waits for a thread or runs in one, by pool: reads of old records"
            " (cold-reads), checkpoints and deletions (housekeeping), clients' regular expressions"
            " (patterns).",
            ("pool",),
        ),
    )
}
