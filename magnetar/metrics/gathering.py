"""Reads the metrics off the broker's state, on the event loop, once for each scrape.

So they cost nothing in between. Walks over all partitions yield to the event loop now and then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import nlargest
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from coordinator.groups.consumer.group import ConsumerGroup
from logstore.disk.pools import COLD_READS, HOUSEKEEPING
from logstore.sync.sync_executors import BOUNDS_SECONDS, SyncDurations
from magnetar.metrics.families import COUNTER, FAMILIES, NAMED_FROM_SECONDS, TOPICS_MAX
from magnetar.runtime.groups import Groups
from magnetar.runtime.healing import Healing
from magnetar.runtime.patterns import PATTERNS
from magnetar.runtime.quotas import Quotas
from magnetar.runtime.services import Services
from magnetar.runtime.transaction_store import TransactionStore
from magnetar.runtime.transactions import Transactions
from magnetar.server.listening import Server
from magnetar.storage.topics import Topic
from wire.api import API_NAMES

#: Partitions looked at in one turn of the event loop: about a millisecond.
_SLICE = 1000

Samples = Iterable[tuple[tuple[str, ...], float]]


async def gather(services: Services, healing: Healing, server: Server) -> list[Metric]:
    """Return every metric as it is now."""
    families = [
        *_transactions(services.transactions, services.clock.now_ms()),
        _labelled(
            "magnetar_transactions_healed_total",
            [((remedy.value,), count) for remedy, count in healing.counts.items()],
        ),
        _plain("magnetar_fenced_markers_total", services.participants.fenced_markers),
        _groups(services.groups),
        *_server(server),
        *_throttled(services.quotas),
        _labelled(
            "magnetar_blocking_jobs",
            [((pool.name,), pool.jobs) for pool in (COLD_READS, HOUSEKEEPING, PATTERNS)],
        ),
        _syncs(services.logs.sync_durations),
        _plain("magnetar_unreadable_reads_total", services.logs.unreadable_reads),
        _plain("magnetar_full_disk_refusals_total", services.logs.room.refusals),
    ]
    # Last, because it alone gives up its turn: all that is above is of one moment.
    return families + await _partitions(services.topics.all())


def _transactions(transactions: Transactions, now_ms: int) -> Iterator[Metric]:
    yield _plain("magnetar_transactions_open", transactions.open_count)
    yield _plain("magnetar_transactional_ids", transactions.id_count)
    oldest = transactions.oldest_open()
    samples = []
    if oldest is not None:
        age_s = (now_ms - oldest.started_at_ms) / 1000
        is_named = age_s >= NAMED_FROM_SECONDS
        names = (oldest.transactional_id, str(oldest.txn_id)) if is_named else ("", "")
        samples = [(names, age_s)]
    yield _labelled("magnetar_oldest_open_transaction_seconds", samples)
    yield from _votes(transactions.store, now_ms)
    yield _plain("magnetar_transactions_timed_out_total", transactions.timed_out)
    yield _plain("magnetar_late_settlements_total", transactions.late_settlements)


def _votes(store: TransactionStore, now_ms: int) -> Iterator[Metric]:
    yield _plain("magnetar_votes_waiting", store.index.vote_count)
    oldest = store.index.oldest_vote()
    samples = []
    if oldest is not None:
        age_s = (now_ms - oldest.updated_at_ms) / 1000
        name = oldest.transactional_id if age_s >= NAMED_FROM_SECONDS else ""
        samples = [((name,), age_s)]
    yield _labelled("magnetar_oldest_vote_seconds", samples)
    yield _plain("magnetar_votes_expired_total", store.expiry.votes_expired)


def _groups(groups: Groups) -> Metric:
    kinds = Counter(
        ("consumer" if isinstance(group, ConsumerGroup) else "classic", group.state.value)
        for group in groups.all()
    )
    return _labelled("magnetar_groups", kinds.items())


def _server(server: Server) -> Iterator[Metric]:
    yield _plain("magnetar_connections", server.connection_count)
    yield _plain("magnetar_received_bytes_total", server.received_bytes)
    yield _plain("magnetar_sent_bytes_total", server.sent_bytes)
    requests = server.dispatcher.request_counts.items()
    yield _labelled(
        "magnetar_requests_total",
        [((API_NAMES[key],), count) for key, count in requests if count],
    )
    memory = server.memory
    yield _labelled(
        "magnetar_request_memory_bytes",
        [
            (("in_flight",), memory.in_flight_bytes),
            (("partial",), memory.partial_bytes),
            (("waiting",), memory.waiting_bytes),
            (("answers",), server.response_memory.held_bytes),
        ],
    )


def _throttled(quotas: Quotas) -> Iterator[Metric]:
    kinds = quotas.throttled.items()
    yield _labelled(
        "magnetar_throttled_total", [((kind.value,), each.count) for kind, each in kinds]
    )
    yield _labelled(
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


async def _partitions(topics: Collection[Topic]) -> list[Metric]:
    lags: dict[str, int] = {}
    seen = 0
    for topic in topics:
        lag = sum(log.high_watermark - log.last_stable_offset for log in topic.local)
        if lag:
            lags[topic.name] = lag
        # A turn after each slice, however the partitions are spread over topics.
        if seen // _SLICE != (seen := seen + len(topic.partitions)) // _SLICE:
            await asyncio.sleep(0)
    most = nlargest(TOPICS_MAX, lags.items(), key=lambda item: item[1])
    return [
        _labelled("magnetar_stable_offset_lag_records", [((name,), lag) for name, lag in most]),
        _plain("magnetar_stable_offset_lag_records_sum", sum(lags.values())),
        _plain("magnetar_topics", len(topics)),
        _plain("magnetar_partitions", seen),
    ]


def _plain(name: str, value: float) -> Metric:
    return _labelled(name, [((), value)])


def _labelled(name: str, samples: Samples) -> Metric:
    family = FAMILIES[name]
    of_kind = CounterMetricFamily if family.kind is COUNTER else GaugeMetricFamily
    metric = of_kind(name, family.help, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric
