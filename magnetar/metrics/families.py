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
        Family(
            "magnetar_transactional_ids", GAUGE, "Transactional ids that the coordinators know."
        ),
        Family(
            "magnetar_oldest_open_transaction_seconds",
            GAUGE,
            "Age of the oldest open transaction. It has labels if it is older than"
            f" {NAMED_FROM_SECONDS} seconds. Absent if no transaction is open.",
            ("transactional_id", "txn_id"),
        ),
        Family(
            "magnetar_votes_waiting",
            GAUGE,
            "Transactions of children that have voted, and wait for the decision of their parents.",
        ),
        Family(
            "magnetar_oldest_vote_seconds",
            GAUGE,
            "How long the oldest of these votes has waited. It has a label if it is older than"
            f" {NAMED_FROM_SECONDS} seconds. Absent if no vote waits.",
            ("transactional_id",),
        ),
        Family(
            "magnetar_votes_expired_total",
            COUNTER,
            "Votes that were aborted, because no decision came within joint.vote.timeout.ms.",
        ),
        Family(
            "magnetar_transactions_timed_out_total",
            COUNTER,
            "Transactions that were aborted at their timeout.",
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
            "EndTxn requests answered before all markers were durable: a disk or node was slow.",
        ),
        Family(
            "magnetar_fenced_markers_total",
            COUNTER,
            "Markers that took a partition's coordinator epoch, which was higher than theirs.",
        ),
        Family(
            "magnetar_unreadable_reads_total",
            COUNTER,
            "Reads that failed because the disk could not read a part of a segment. The broker's"
            " log names the partitions.",
        ),
        Family(
            "magnetar_full_disk_refusals_total",
            COUNTER,
            "Clients' batches that were refused because the disk was full (log.dir.reserve.bytes),"
            " or too many bytes waited for a cluster's bucket (cluster.objects.backlog.max.bytes).",
        ),
        Family(
            "magnetar_stable_offset_lag_records",
            GAUGE,
            "Offsets between last stable offset and high watermark, summed over a topic's"
            f" partitions. Only topics with a lag, at most the {TOPICS_MAX} with the largest.",
            ("topic",),
        ),
        Family(
            "magnetar_stable_offset_lag_all_records",
            GAUGE,
            "The same, summed over all topics.",
        ),
        Family("magnetar_topics", GAUGE, "Topics, internal ones included."),
        Family("magnetar_partitions", GAUGE, "Partitions of all topics."),
        Family(
            "magnetar_groups",
            GAUGE,
            "Groups, by protocol (classic or consumer) and state.",
            ("protocol", "state"),
        ),
        Family(
            "magnetar_group_member_bytes",
            GAUGE,
            "Memory of the metadata of all group members, an estimate. Bounded by"
            " queued.max.request.bytes.",
        ),
        Family(
            "magnetar_group_lag_records",
            GAUGE,
            "Offsets between a group's committed offsets and the ends of the partitions, summed."
            f" Only groups with a lag, at most the {GROUPS_MAX} with the largest.",
            ("group",),
        ),
        Family("magnetar_group_lag_all_records", GAUGE, "The same, summed over all groups."),
        Family(
            "magnetar_series_left_out",
            GAUGE,
            "Partitions and offsets of groups without series of their own: kafka_topic_* and"
            f" kafka_consumergroup_* have at most {SERIES_MAX} each.",
        ),
        Family(
            "magnetar_sync_seconds",
            HISTOGRAM,
            "How long syncs to the disk took. A sync covers everything written before it began.",
        ),
        Family(
            "magnetar_database_bytes",
            GAUGE,
            "Size of the batches in a cluster's database, of the partitions that this node leads."
            " The label says what removes them: a bucket, or retention and compaction (retention)."
            " Up to one segment more for each partition. Absent outside a cluster.",
            ("until",),
        ),
        Family("magnetar_connections", GAUGE, "Clients that are connected."),
        Family(
            "magnetar_handshakes_open",
            GAUGE,
            "Connections to listeners with TLS that are not encrypted yet.",
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
        Family("magnetar_sent_bytes_total", COUNTER, "Bytes that were sent to clients."),
        Family(
            "magnetar_requests_total", COUNTER, "Requests by API, since its first one.", ("api",)
        ),
        Family(
            "magnetar_request_seconds",
            HISTOGRAM,
            "How long requests took, by API, from their decoding to their answers. This includes"
            " waits for syncs, for records, or for other members of a group. Bucket bounds are"
            " powers of two of nanoseconds. APIs without requests are left out.",
            ("api",),
        ),
        Family(
            "magnetar_refusals_total",
            COUNTER,
            "Refusals by API and error code: of whole requests, and of single partitions of"
            " Produce, Fetch and AddPartitionsToTxn. Retriable errors count too.",
            ("api", "error"),
        ),
        Family(
            "magnetar_telemetry_clients",
            GAUGE,
            "Clients that have asked which metrics they should push (KIP-714).",
        ),
        Family(
            "magnetar_telemetry_left_out_total",
            COUNTER,
            "Samples that were not kept, because their client has pushed more than its share.",
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
            "How long these pauses were, as told to the clients.",
            ("quota",),
        ),
        Family(
            "magnetar_request_memory_bytes",
            GAUGE,
            "Memory of requests: in work (in_flight), not received completely (partial), waiting"
            " for as long as the client asked (waiting), and of answers not yet sent (answers).",
            ("account",),
        ),
        Family(
            "magnetar_blocking_jobs",
            GAUGE,
            "Work that waits for a thread or runs in one, by pool: reads of old records"
            " (cold-reads), searches by time (searches), checkpoints and deletions (housekeeping),"
            " clients' regular expressions (patterns).",
            ("pool",),
        ),
    )
}
