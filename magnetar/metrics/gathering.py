"""Reads the metrics off the broker's state, on the event loop, once for each scrape.

So metrics cost nothing between two scrapes. A walk over all partitions or groups lets the event
loop go on now and then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from coordinator.groups.consumer.group import ConsumerGroup
from logstore.disk.pools import COLD_READS, HOUSEKEEPING
from logstore.partition.log import PartitionLog
from logstore.remote.remote_ledger import RemoteLedger
from logstore.segments.searching import SEARCHES
from logstore.sync.sync_executors import BOUNDS_SECONDS, SyncDurations
from magnetar.config.observing import ObservingConfig
from magnetar.metrics import exporter_names, jmx_names
from magnetar.metrics.client_metrics import told_by_clients
from magnetar.metrics.families import FAMILIES, GROUPS_MAX, NAMED_FROM_SECONDS, TOPICS_MAX
from magnetar.metrics.positions import GROUPS_SLICE, SLICE, Positions, positions
from magnetar.metrics.samples import labelled, plain
from magnetar.runtime.authentication import Authentication
from magnetar.runtime.groups import Groups
from magnetar.runtime.healing import Healing
from magnetar.runtime.patterns import PATTERNS
from magnetar.runtime.quotas import Quotas
from magnetar.runtime.refusal_counts import RefusalCounts
from magnetar.runtime.services import Services
from magnetar.runtime.transaction_store import TransactionStore
from magnetar.runtime.transactions import Transactions
from magnetar.security.handshakes import Outcome
from magnetar.server.latency import SUM_NS, Durations, bounds_seconds, cumulated
from magnetar.server.listening import Server
from magnetar.storage.topic import Topic
from wire.api import API_NAMES


async def gather(services: Services, healing: Healing, server: Server) -> list[Metric]:
    """Return every metric as it is now."""
    families = [
        *_transactions(services.transactions, services.clock.now_ms()),
        labelled(
            "magnetar_transactions_healed_total",
            [((remedy.value,), count) for remedy, count in healing.counts.items()],
        ),
        plain("magnetar_fenced_markers_total", services.participants.fenced_markers),
        plain("magnetar_group_member_bytes", services.groups.shards.member_bytes),
        *_server(server),
        _logins(services.authentication),
        _refusals(services.refusals),
        *_throttled(services.quotas),
        labelled(
            "magnetar_blocking_jobs",
            [((pool.name,), pool.jobs) for pool in (COLD_READS, SEARCHES, HOUSEKEEPING, PATTERNS)],
        ),
        _syncs(services.logs.sync_durations),
        plain("magnetar_unreadable_reads_total", services.logs.unreadable_reads),
        plain("magnetar_full_disk_refusals_total", services.logs.room.refusals),
    ]
    # Only the rest lets the event loop go on in between: everything above is of one moment.
    topics = services.topics.all()
    families.append(await _groups(services.groups))
    families += await _partitions(topics, has_bucket=services.logs.bulk is not None)
    found = await positions(services.groups, services.topics)
    families += await _lag(found)
    names = services.config.view(ObservingConfig).metrics_names
    left_out = 0
    if exporter_names.NAME in names:
        own, left_out = await exporter_names.gather(services, topics, found)
        families += own
    if jmx_names.NAME in names:
        families += await jmx_names.gather(services, server)
    families.append(plain("magnetar_series_left_out", left_out))
    families += await told_by_clients(services.telemetry, services.clock.steady_ms())
    return families


def _transactions(transactions: Transactions, now_ms: int) -> Iterator[Metric]:
    yield plain("magnetar_transactions_open", transactions.open_count)
    yield plain("magnetar_transactional_ids", transactions.id_count)
    oldest = transactions.oldest_open()
    samples = []
    if oldest is not None:
        age_s = _age_s(oldest.started_at_ms, now_ms)
        is_named = age_s >= NAMED_FROM_SECONDS
        names = (oldest.transactional_id, str(oldest.txn_id)) if is_named else ("", "")
        samples = [(names, age_s)]
    yield labelled("magnetar_oldest_open_transaction_seconds", samples)
    yield from _votes(transactions.store, now_ms)
    yield plain("magnetar_transactions_timed_out_total", transactions.timed_out)
    yield plain("magnetar_late_settlements_total", transactions.late_settlements)


def _age_s(since_ms: int, now_ms: int) -> float:
    """Return how old something is; 0 where the wall clock has been set back meanwhile."""
    return max(now_ms - since_ms, 0) / 1000


def _votes(store: TransactionStore, now_ms: int) -> Iterator[Metric]:
    yield plain("magnetar_votes_waiting", store.index.vote_count)
    oldest = store.index.oldest_vote()
    samples = []
    if oldest is not None:
        age_s = _age_s(oldest.updated_at_ms, now_ms)
        name = oldest.transactional_id if age_s >= NAMED_FROM_SECONDS else ""
        samples = [((name,), age_s)]
    yield labelled("magnetar_oldest_vote_seconds", samples)
    yield plain("magnetar_votes_expired_total", store.expiry.votes_expired)


async def _groups(groups: Groups) -> Metric:
    kinds = Counter[tuple[str, ...]]()
    for seen, group in enumerate(groups.all(), 1):
        kinds["consumer" if isinstance(group, ConsumerGroup) else "classic", group.state.value] += 1
        if not seen % GROUPS_SLICE:
            await asyncio.sleep(0)
    return labelled("magnetar_groups", kinds.items())


def _server(server: Server) -> Iterator[Metric]:
    yield plain("magnetar_connections", server.connection_count)
    yield plain("magnetar_handshakes_open", sum(each.count for each in server.handshakes))
    outcomes: Counter[Outcome] = Counter()
    for each in server.handshakes:
        outcomes.update(each.outcomes)
    yield labelled(
        "magnetar_handshakes_total", [((kind.value,), outcomes[kind]) for kind in Outcome]
    )
    yield plain("magnetar_received_bytes_total", server.received_bytes)
    yield plain("magnetar_sent_bytes_total", server.sent_bytes)
    requests = server.dispatcher.request_counts.items()
    yield labelled(
        "magnetar_requests_total",
        [((API_NAMES[key],), count) for key, count in requests if count],
    )
    yield _latencies(server.dispatcher.durations)
    memory = server.memory
    yield labelled(
        "magnetar_request_memory_bytes",
        [
            (("in_flight",), memory.in_flight_bytes),
            (("partial",), memory.partial_bytes),
            (("waiting",), memory.waiting_bytes + memory.undecoded_bytes),
            (("answers",), server.response_memory.held_bytes),
        ],
    )


def _logins(authentication: Authentication) -> Metric:
    counts: Counter[tuple[str, ...]] = Counter()
    for mechanism in authentication.mechanisms():
        counts[mechanism.name, "succeeded"] += mechanism.logins.succeeded
        counts[mechanism.name, "failed"] += mechanism.logins.failed
    return labelled("magnetar_logins_total", counts.items())


def _latencies(durations: Mapping[int, Durations]) -> Metric:
    family = FAMILIES["magnetar_request_seconds"]
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*(f"{bound:.9f}".rstrip("0") for bound in bounds_seconds()), "+Inf"]
    for key, counted in durations.items():
        if any(counted):
            # Prometheus' buckets count everything up to their bound.
            buckets = list(zip(bounds, cumulated(counted), strict=True))
            metric.add_metric([API_NAMES[key]], buckets, counted[SUM_NS] / 1e9)
    return metric


def _refusals(refusals: RefusalCounts) -> Metric:
    counts = refusals.counts.items()
    return labelled(
        "magnetar_refusals_total",
        [((API_NAMES[key], code.name), count) for (key, code), count in counts],
    )


async def _lag(found: Positions) -> list[Metric]:
    lags = Counter[str]()
    for seen, each in enumerate(found, 1):
        lags[each.group_id] += each.lag
        if not seen % SLICE:
            await asyncio.sleep(0)
    most = nlargest(GROUPS_MAX, lags.items(), key=lambda item: item[1])
    return [
        labelled("magnetar_group_lag_records", [((name,), lag) for name, lag in most if lag]),
        plain("magnetar_group_lag_all_records", lags.total()),
    ]


def _throttled(quotas: Quotas) -> Iterator[Metric]:
    kinds = quotas.throttled.items()
    yield labelled(
        "magnetar_throttled_total", [((kind.value,), each.count) for kind, each in kinds]
    )
    yield labelled(
        "magnetar_throttle_seconds_total",
        [((kind.value,), each.total_ms / 1000) for kind, each in kinds],
    )


def _syncs(durations: SyncDurations) -> Metric:
    family = FAMILIES["magnetar_sync_seconds"]
    bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
    return HistogramMetricFamily(
        family.name,
        family.help,
        # Prometheus' buckets count everything up to their bound.
        buckets=list(zip(bounds, accumulate(durations.counts), strict=True)),
        sum_value=durations.total_seconds,
    )


def _stored_bytes(logs: Iterable[PartitionLog], until: str) -> dict[tuple[str], int]:
    """Return the bytes that a cluster's database has of partitions of a topic.

    `until` is the label, and says what removes them: the move to a bucket, or retention.
    """
    ledgers = [log.ledger for log in logs]
    in_rows = [each.bytes_in_rows for each in ledgers if isinstance(each, RemoteLedger)]
    return {(until,): sum(in_rows)} if in_rows else {}


async def _partitions(topics: Collection[Topic], *, has_bucket: bool) -> list[Metric]:
    lags: dict[str, int] = {}
    stored = Counter[tuple[str]]()
    seen = in_turn = 0
    for topic in topics:
        until = "bucket" if has_bucket and not topic.is_internal else "retention"
        logs, lag = topic.local, 0
        seen += len(topic.partitions)
        # A turn after each slice, however the partitions are spread over topics.
        for first in range(0, len(logs), SLICE):
            some = logs[first : first + SLICE]
            stored.update(_stored_bytes(some, until))
            lag += sum(log.high_watermark - log.last_stable_offset for log in some)
            in_turn += len(some)
            if in_turn >= SLICE:
                in_turn = 0
                await asyncio.sleep(0)
        if lag:
            lags[topic.name] = lag
    most = nlargest(TOPICS_MAX, lags.items(), key=lambda item: item[1])
    return [
        labelled("magnetar_stable_offset_lag_records", [((name,), lag) for name, lag in most]),
        plain("magnetar_stable_offset_lag_all_records", sum(lags.values())),
        labelled("magnetar_database_bytes", stored.items()),
        plain("magnetar_topics", len(topics)),
        plain("magnetar_partitions", seen),
    ]
