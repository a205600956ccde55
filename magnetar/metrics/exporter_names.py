"""The names of kafka_exporter, which many dashboards and alert rules read: `metrics.names`.

Meanings are those of danielqsj's kafka_exporter: offsets of partitions are the next to be written,
and lag counts offsets, so markers of transactions too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from prometheus_client.core import Metric

from magnetar.metrics.families import GAUGE, SERIES_MAX, Family
from magnetar.metrics.positions import GROUPS_SLICE, SLICE, Position, Positions
from magnetar.metrics.replica_counts import replica_counts
from magnetar.metrics.samples import Samples, labelled
from magnetar.runtime.services import Services
from magnetar.storage.leaders import Placement
from magnetar.storage.topic import Topic

#: A family's name, and its samples.
_Named: TypeAlias = tuple[str, Samples]

NAME = "kafka_exporter"
_PLACE = ("topic", "partition")
_GROUP_PLACE = ("consumergroup", "topic", "partition")

FAMILIES = {
    family.name: family
    for family in (
        Family("kafka_brokers", GAUGE, "Brokers of the cluster. Only one of them tells it."),
        Family(
            "kafka_topic_partitions",
            GAUGE,
            "Partitions of a topic. Only one broker tells it.",
            ("topic",),
        ),
        Family(
            "kafka_topic_partition_current_offset",
            GAUGE,
            "The offset behind the last durable record of a partition.",
            _PLACE,
        ),
        Family(
            "kafka_topic_partition_oldest_offset",
            GAUGE,
            "The first offset of a partition.",
            _PLACE,
        ),
        Family("kafka_topic_partition_leader", GAUGE, "The leader's node id.", _PLACE),
        Family("kafka_topic_partition_replicas", GAUGE, "Replicas of a partition.", _PLACE),
        Family("kafka_topic_partition_in_sync_replica", GAUGE, "Replicas in sync.", _PLACE),
        Family(
            "kafka_topic_partition_under_replicated_partition",
            GAUGE,
            "1: a replica does not live. Always 0 but in a cluster.",
            _PLACE,
        ),
        Family("kafka_consumergroup_members", GAUGE, "Members of a group.", ("consumergroup",)),
        Family(
            "kafka_consumergroup_current_offset",
            GAUGE,
            "The offset that a group has committed.",
            _GROUP_PLACE,
        ),
        Family(
            "kafka_consumergroup_lag",
            GAUGE,
            "Offsets from there to the end of the partition.",
            _GROUP_PLACE,
        ),
        Family(
            "kafka_consumergroup_current_offset_sum",
            GAUGE,
            "The committed offsets, summed over a topic.",
            ("consumergroup", "topic"),
        ),
        Family(
            "kafka_consumergroup_lag_sum",
            GAUGE,
            "The lag, summed over a topic.",
            ("consumergroup", "topic"),
        ),
    )
}


async def gather(
    services: Services, topics: Collection[Topic], found: Positions
) -> tuple[list[Metric], int]:
    """Return the families, and how many partitions and offsets had no room in them."""
    places = sum(len(topic.partitions) for topic in topics)
    left_out = max(places - SERIES_MAX, 0) + max(len(found) - SERIES_MAX, 0)
    members = []
    for group in islice(services.groups.all(), SERIES_MAX):
        members.append(((group.group_id,), float(len(group.members))))
        if not len(members) % GROUPS_SLICE:
            await asyncio.sleep(0)
    nodes = services.nodes
    is_controller = nodes.controller_id == nodes.own_id
    # By one node, so that a sum over all of them is right too.
    brokers = [((), len(nodes.ids))] if is_controller else []
    told = islice(topics, SERIES_MAX if is_controller else 0)
    families = await _in_turns(
        (
            ("kafka_brokers", brokers),
            (
                "kafka_topic_partitions",
                [((topic.name,), len(topic.partitions)) for topic in told],
            ),
            *await _of_partitions(topics, services.topics.placement),
            ("kafka_consumergroup_members", members),
        )
    )
    families += await _in_turns(await _of_groups(found[:SERIES_MAX]))
    return families, left_out


#: What is told of each partition, in this order.
_OF_PARTITION = (
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_replicas",
    "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_under_replicated_partition",
)


async def _of_partitions(topics: Iterable[Topic], placement: Placement) -> list[_Named]:
    samples: list[list[tuple[tuple[str, ...], float]]] = [[] for _ in _OF_PARTITION]
    for number, (labels, values) in enumerate(islice(_places(topics, placement), SERIES_MAX), 1):
        for each, value in zip(samples, values, strict=True):
            each.append((labels, value))
        if not number % SLICE:
            await asyncio.sleep(0)
    return list(zip(_OF_PARTITION, samples, strict=True))


def _places(
    topics: Iterable[Topic], placement: Placement
) -> Iterator[tuple[tuple[str, str], tuple[float, ...]]]:
    for topic in topics:
        for log in topic.local:
            replicas, in_sync = replica_counts(topic, log.partition, placement)
            offsets = (log.high_watermark, log.log_start_offset)
            labels = (topic.name, str(log.partition))
            yield labels, (*offsets, placement.own_id, replicas, in_sync, in_sync < replicas)


async def _of_groups(found: Positions) -> list[_Named]:
    committed, lags = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for number, each in enumerate(found, 1):
        committed[each.group_id, each.topic] += each.committed
        lags[each.group_id, each.topic] += each.lag
        if not number % SLICE:
            await asyncio.sleep(0)
    return [
        (
            "kafka_consumergroup_current_offset",
            ((_labels(each), each.committed) for each in found),
        ),
        ("kafka_consumergroup_lag", ((_labels(each), each.lag) for each in found)),
        ("kafka_consumergroup_current_offset_sum", committed.items()),
        ("kafka_consumergroup_lag_sum", lags.items()),
    ]


def _labels(each: Position) -> tuple[str, str, str]:
    return each.group_id, each.topic, str(each.partition)


async def _in_turns(named: Iterable[_Named]) -> list[Metric]:
    """Return families with these names and samples: of each there may be ten thousand."""
    families: list[Metric] = []
    for name, samples in named:
        family = labelled(name, (), FAMILIES)
        for number, (values, value) in enumerate(samples):
            if not number % SLICE:
                await asyncio.sleep(0)
            family.add_metric(values, value)
        families.append(family)
    return families
