"""What an import takes over, and what it refuses by name.

A whole topic is refused if one of its partitions is missing or damaged, or has an open transaction
that no coordinator here would end. One refused topic stops the import, so that a user learns of it
before the import and not from missing data; `except_` leaves the topic out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import UUID

from logstore.disk.checkpoints import Offsets
from magnetar.config.setting import InvalidValue
from magnetar.config.topic import parse_topic_configs
from magnetar.importing.scan import Scanned, scan_partition
from magnetar.importing.source import FoundTopic, ImportRefused, OnProgress, Source
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.topic_names import INTERNAL, TRANSACTION_STATE, check_name
from wire.errors import KafkaError

_VERSION = 1
#: Internal topics of Kafka that magnetar has no use for.
_LEFT_BEHIND = frozenset({"__share_group_state"})
_SHOWN = 3


@dataclass(frozen=True)
class Choice:
    """The user's choice among the topics; patterns are shell globs of topic names."""

    only: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    abort_open: bool = False
    #: (glob, name, value): settings that replace those of the topics.
    configs: tuple[tuple[str, str, str], ...] = ()

    def wants(self, topic: str) -> bool:
        # The exceptions win, so that --only may be a wide pattern.
        if any(fnmatchcase(topic, pattern) for pattern in self.except_):
            return False
        return not self.only or any(fnmatchcase(topic, pattern) for pattern in self.only)

    def without_match(self, topics: Iterable[str]) -> list[str]:
        """Return the patterns of --only that match none of the topics: they are mistyped."""
        names = [*topics]
        return [
            pattern
            for pattern in self.only
            if not any(fnmatchcase(name, pattern) for name in names)
        ]


@dataclass
class PlannedTopic:
    """A topic to import, with its directory in the source by partition."""

    row: TopicRow
    directories: dict[int, Path]


@dataclass
class Plan:
    """What an import does, all of it or nothing."""

    topics: list[PlannedTopic]
    cluster_id: str | None
    is_clean: bool
    next_producer_id: int
    #: The highest leader or coordinator epoch in the logs; -1 for none.
    epoch: int
    recovery_points: Offsets
    start_offsets: Offsets
    already_there: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return everything but the source directories, which a staged import does not need."""
        return json.dumps(
            {
                "version": _VERSION,
                "cluster_id": self.cluster_id,
                "clean": self.is_clean,
                "next_producer_id": self.next_producer_id,
                "epoch": self.epoch,
                "recovery_points": _shown(self.recovery_points),
                "start_offsets": _shown(self.start_offsets),
                "topics": [
                    {**topic.row._asdict(), "id": str(topic.row.id)} for topic in self.topics
                ],
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Return the encoded plan, without directories. ImportRefused: it is another version's."""
        stored: dict[str, Any] = json.loads(data)
        if stored["version"] != _VERSION:
            raise ImportRefused("another version of magnetar began this import. Finish it there.")
        return cls(
            topics=[
                PlannedTopic(TopicRow(**{**row, "id": UUID(row["id"])}), {})
                for row in stored["topics"]
            ],
            cluster_id=stored["cluster_id"],
            is_clean=stored["clean"],
            next_producer_id=stored["next_producer_id"],
            epoch=stored["epoch"],
            recovery_points=_read(stored["recovery_points"]),
            start_offsets=_read(stored["start_offsets"]),
        )


def _shown(offsets: Offsets) -> list[list[Any]]:
    return [[topic, index, offset] for (topic, index), offset in offsets.items()]


def _read(offsets: list[list[Any]]) -> Offsets:
    return {(topic, index): offset for topic, index, offset in offsets}


def make_plan(
    source: Source,
    present: Mapping[str, TopicRow],
    choice: Choice,
    on_progress: OnProgress,
) -> Plan:
    """Return what to import into a data directory that has the topics `present`.

    Reads all of the logs. ImportRefused names every topic that cannot be imported, and why.
    """
    if missing := choice.without_match(source.topics):
        raise ImportRefused(f"nothing was imported: there is no topic {', '.join(missing)}")
    plan = Plan([], source.cluster_id, source.is_clean, 0, -1, {}, {})
    refused: list[str] = []
    for name, found in sorted(source.topics.items()):
        if not choice.wants(name):
            continue
        if name in _LEFT_BEHIND:
            plan.warnings.append(f"{name} is left behind: share groups are not supported")
        elif (there := present.get(name)) is not None:
            _meet(plan, found, there, refused)
        else:
            try:
                plan.topics.append(_planned(source, found, choice, plan.warnings))
            except ImportRefused as refusal:
                refused.append(f"{name}: {refusal}")
    # Blocks of producer ids that the cluster has handed out, used or not, must not be handed out
    # again.
    if source.metadata is not None:
        plan.next_producer_id = source.metadata.next_producer_id
    _scan(source, plan, choice, refused, on_progress)
    if refused:
        raise ImportRefused(
            "nothing was imported.\n  " + "\n  ".join(refused) + "\n--except TOPIC leaves one out."
        )
    return plan


def _meet(plan: Plan, found: FoundTopic, there: TopicRow, refused: list[str]) -> None:
    """Account for a topic whose name is in the data directory: imported before, or another one."""
    # By id, not by name: an interrupted import is repeated with the same command.
    if found.topic_ids == {there.id}:
        plan.already_there.append(found.name)
    elif found.name in INTERNAL:
        left = "transactions" if found.name == TRANSACTION_STATE else "groups and their offsets"
        plan.warnings.append(
            f"{found.name} is left behind, with its {left}: the data directory has its own"
        )
    else:
        refused.append(
            f"{found.name}: the data directory has another topic of that name, with id {there.id}"
        )


def _planned(
    source: Source, found: FoundTopic, choice: Choice, warnings: list[str]
) -> PlannedTopic:
    name = found.name
    try:
        check_name(name)
    except KafkaError as error:
        raise ImportRefused(error.detail) from None
    if len(found.topic_ids) > 1:
        raise ImportRefused("its partitions belong to different topics of that name")
    if found.is_swapping:
        raise ImportRefused(
            "Kafka ended in the middle of a compaction; start it once and stop it cleanly"
        )
    known = None if source.metadata is None else source.metadata.by_name().get(name)
    if known is not None and found.topic_ids and known.topic_id not in found.topic_ids:
        known = None  # The directory belongs to an earlier topic of that name.
    if source.metadata is not None and known is None:
        raise ImportRefused("its cluster does not know this topic: it was deleted, or copied here")
    count = 1 + max(found.directories)
    if known is not None:
        count = max(count, known.partition_count)
    missing = sorted(set(range(count)) - set(found.directories))
    if missing:
        shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        raise ImportRefused(
            f"{len(missing)} of its {count} partitions are not here ({shown})."
            " Copy them here from their brokers"
        )
    configs = _configs(source, name, choice, warnings)
    topic_id = next(iter(found.topic_ids), None) or (known.topic_id if known else uuid.uuid4())
    factor = max(known.replication_factor, 1) if known else 1
    row = TopicRow(topic_id, name, count, factor, name in INTERNAL, configs)
    return PlannedTopic(row, found.directories)


def _configs(source: Source, name: str, choice: Choice, warnings: list[str]) -> dict[str, str]:
    """Return the topic's own settings; what means nothing here is left out, with a warning."""
    # Kafka's brokers give it to internal topics; deleted by age, they would lose their state.
    configs = {"cleanup.policy": "compact"} if name in INTERNAL else {}
    if source.metadata is not None:
        for setting, value in source.metadata.topic_configs.get(name, {}).items():
            try:
                parse_topic_configs({setting: value})
            except InvalidValue as invalid:
                warnings.append(f"{name}: {setting}={value} is left out: {invalid.reason}")
            else:
                configs[setting] = value
    for pattern, setting, value in choice.configs:
        if fnmatchcase(name, pattern):
            configs[setting] = value
    try:
        # Again, together: values may be impossible beside one another only.
        parse_topic_configs(configs)
    except InvalidValue as invalid:
        raise ImportRefused(invalid.reason) from None
    return configs


def _scan(
    source: Source, plan: Plan, choice: Choice, refused: list[str], on_progress: OnProgress
) -> None:
    names = {topic.row.name for topic in plan.topics} | set(plan.already_there)
    for topic in plan.topics:
        name = topic.row.name
        for index, directory in sorted(topic.directories.items()):
            scanned = scan_partition(directory, name, on_progress)
            # A producer id that is in a log must never be given to another producer: its sequences
            # would look like duplicates.
            plan.next_producer_id = max(plan.next_producer_id, scanned.last_producer_id + 1)
            # New epochs have to be above those in the logs, or consumers would see the log go back
            # in time (KIP-320), and markers be refused.
            plan.epoch = max(plan.epoch, scanned.leader_epoch, scanned.coordinator_epoch)
            _take_checkpoints(source, plan, (name, index), scanned)
            refused += _complaints(source, scanned, f"{name}-{index}", names, choice)


def _take_checkpoints(source: Source, plan: Plan, key: tuple[str, int], scanned: Scanned) -> None:
    """Take over the log's start offset, and the offset from which recovery looks for a torn end.

    After a clean stop that is Kafka's recovery point. A Kafka that was killed may have torn the
    last segment alone: the scan has read those before it. Recovery must not read them again: it
    would take offsets that compaction removed between two segments, or in a replica's last one,
    for a loss.
    """
    point = source.recovery_points.get(key) if source.is_clean else None
    plan.recovery_points[key] = scanned.whole_below if point is None else point
    if key in source.start_offsets:
        plan.start_offsets[key] = source.start_offsets[key]


def _complaints(
    source: Source, scanned: Scanned, partition: str, names: Set[str], choice: Choice
) -> list[str]:
    """Return why a partition cannot be imported. A tail torn by a crash is left to recovery."""
    torn_by_crash = scanned.is_torn and not source.is_clean and len(scanned.damages) == 1
    if scanned.damages and not torn_by_crash:
        return [f"{partition}: damaged at {scanned.damages[0]}"]
    # With its coordinator's log imported, the transaction ends as on Kafka: by its producer or its
    # timeout.
    if not scanned.open_transactions or choice.abort_open or TRANSACTION_STATE in names:
        return []
    return [_open(partition, scanned)]


def _open(partition: str, scanned: Scanned) -> str:
    first = min(scanned.open_transactions, key=scanned.open_transactions.__getitem__)
    more = len(scanned.open_transactions) - 1
    return (
        f"{partition}: the transaction of producer {first} is open since offset"
        f" {scanned.open_transactions[first]}{f', and {more} more' if more else ''}; its"
        f" coordinator's {TRANSACTION_STATE} is not imported. --abort-open aborts it"
    )
