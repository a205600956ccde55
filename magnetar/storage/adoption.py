"""Adopting logs that lie in the data directory and that the catalog does not know.

A topic directory copied from a Kafka broker, or a whole data directory of one, becomes topics of
this broker. They have the topic ids of their partition.metadata, as many partitions as there are,
and settings that delete nothing: the defaults could delete what was to be kept for ever. Producer
ids and epochs found in them are never given out again. The remains of a topic that was being
deleted when the process ended are removed. A file, or a directory with neither a topic id nor a
segment, is left alone, whatever it is called: the broker did not make it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import chain
from uuid import UUID

from logstore.directory.data_directory import FoundPartition
from logstore.directory.foreign_logs import UsedNumbers
from logstore.partition.log import PartitionLog
from magnetar.logging import get_logger
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.logs import Logs
from magnetar.storage.topic_counts import PARTITIONS_MAX
from magnetar.storage.topic_names import INTERNAL, check_name
from wire.errors import KafkaError

_log = get_logger("adoption")

#: The settings of topics that are taken over, until an administrator gives them others.
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


def adopt(logs: Logs, catalog: Catalog) -> list[str]:
    """Enter unknown topics into the catalog and return their names.

    Call it before any log is opened, and before this start has its epoch: that must be above those
    of every log, or a marker would be refused as one of an earlier coordinator.
    """
    known = {row.name for row in catalog.topics()}
    deleted = catalog.deleted_topics()
    unknown: dict[str, list[FoundPartition]] = {}
    remains = []
    for found in logs.found():
        if found.topic_id in deleted:
            remains.append(found)
        elif found.topic not in known and (found.topic_id or logs.holds_log(found)):
            unknown.setdefault(found.topic, []).append(found)
    _remove(logs, remains)
    if deleted:
        # Every name in the directory is durable since it was locked, and no other bears their ids.
        catalog.forget_deleted_topics(deleted)
    if unknown:
        # Before the catalog knows them: after a crash in between, the next start does this again.
        found_logs = list(chain.from_iterable(unknown.values()))
        _stay_above(logs, catalog, found_logs)
        logs.trust_foreign(found_logs)
    return [name for name, partitions in unknown.items() if _enter(catalog, name, partitions)]


def remove_remains(logs: Logs, catalog: Catalog) -> None:
    """Remove what is left of deleted topics in the directory of one of several nodes.

    The catalog goes on remembering them: other nodes may have remains too.
    """
    if deleted := catalog.deleted_topics():
        _remove(logs, [found for found in logs.found() if found.topic_id in deleted])


def _remove(logs: Logs, remains: list[FoundPartition]) -> None:
    if remains:
        logs.remove(remains)
        _log.info("remains of deleted topics removed", partitions=len(remains))


def _stay_above(logs: Logs, catalog: Catalog, found: Iterable[FoundPartition]) -> None:
    """Raise the catalog's counters above the producer ids, leader epochs and coordinator epochs in
    these partitions, so that none is given out again. Reads all of them."""
    used = UsedNumbers()
    for each in found:
        used = used.above(logs.used_numbers(each))
    catalog.reserve_producer_ids_below(used.producer_id + 1)
    catalog.raise_broker_epoch(used.epoch)


def tell_open(logs: Iterable[PartitionLog]) -> None:
    """Log each transaction that is open in an adopted log: healing will abort it, unless its
    coordinator's log was adopted too."""
    for log in logs:
        for producer_id in sorted(log.transactions.open_producer_ids()):
            _log.warning(
                "open transaction adopted",
                topic=log.topic,
                partition=log.partition,
                producer_id=producer_id,
            )


def _enter(catalog: Catalog, name: str, partitions: list[FoundPartition]) -> bool:
    try:
        check_name(name)
    except KafkaError:
        return False
    ids: set[UUID] = {found.topic_id for found in partitions if found.topic_id is not None}
    # Directories of two topics of one name, copied from two clusters.
    if len(ids) > 1:
        _log.error("topic not adopted", topic=name, reason="its partitions have different ids")
        return False
    # By the highest number: partitions that are missing below it are made, empty.
    count = 1 + max(found.partition for found in partitions)
    if count > PARTITIONS_MAX:
        _log.error("topic not adopted", topic=name, reason=f"{count} partitions are too many")
        return False
    topic_id = ids.pop() if ids else uuid.uuid4()
    configs = {} if name in INTERNAL else _KEEPS_ALL
    catalog.add_topic(TopicRow(topic_id, name, count, 1, name in INTERNAL, configs))
    _log.info(
        "topic adopted", topic=name, topic_id=str(topic_id), partitions=count, configs=configs
    )
    return True
