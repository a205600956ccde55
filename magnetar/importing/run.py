"""An import from begin to end: lock both directories, plan, stage, put in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from magnetar.importing.plan import Choice, Plan, make_plan
from magnetar.importing.source import ImportRefused, Progress, Source, held, read_sources
from magnetar.importing.staging import PLAN, StagedFile, decide, files_of, finish, stage
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import TopicRow
from magnetar.storage.placing import node_directories, refusal_of_part
from magnetar.storage.segment_files import segments
from magnetar.storage.sqlite_database import FILE_NAME


@dataclass
class Outcome:
    """What an import did, or would do."""

    plan: Plan
    size_bytes: int
    #: Whether an earlier import, which was interrupted after its decision, was completed first.
    finished_earlier: bool


def import_directories(
    source_paths: Sequence[Path],
    data_dir: Path,
    choice: Choice,
    *,
    link: bool,
    dry_run: bool,
    progress: Progress,
) -> Outcome:
    """Import the topics of one broker's directories into that of a stopped magnetar.

    It imports all of them or none; after an interruption, call it again. Raises ImportRefused, and
    OSError if a disk fails or is full. With `dry_run` it writes nothing.
    """
    if any(
        path.exists() and data_dir.exists() and data_dir.samefile(path) for path in source_paths
    ):
        raise ImportRefused(
            f"{data_dir} is both source and target. To go on in Kafka's own directory,"
            " `magnetar serve` adopts its topics."
        )
    if (refusal := refusal_of_part(data_dir)) is not None:
        raise ImportRefused(refusal)
    # The sources first, and for the whole import: a broker that starts meanwhile would write to the
    # logs that are read.
    with ExitStack() as locks:
        for path in source_paths:
            locks.enter_context(held(path))
        # Before the directory is made and locked: a dry run writes nothing.
        if dry_run:
            plan = _planned(read_sources(source_paths), _present(data_dir), choice, progress)
            return Outcome(plan, _size(files_of(plan, data_dir, link=link)), False)
        data_dir.mkdir(parents=True, exist_ok=True)
        for path in (data_dir, *node_directories(data_dir)):
            locks.enter_context(held(path, create=True))
        # Before the plan: topics of the earlier import count as being there.
        finished = finish_interrupted(data_dir)
        plan = _planned(read_sources(source_paths), _present(data_dir), choice, progress)
        files = files_of(plan, data_dir, link=link)
        size_bytes = _size(files)
        if plan.topics:
            _refuse_what_is_in_the_way(plan, data_dir)
            with progress("Copying", size_bytes) as on_progress:
                stage(files, data_dir, on_progress)
            # After `stage` has made every copy durable: from here on an interruption is completed,
            # and never undone.
            decide(plan, data_dir)
            finish_interrupted(data_dir)
        return Outcome(plan, size_bytes, finished)


def finish_interrupted(data_dir: Path) -> bool:
    """Complete an import that was interrupted after its decision; return whether there was one.

    The caller holds the directory's lock.
    """
    if not (data_dir / PLAN).exists():
        return False
    cluster_id = Plan.decode((data_dir / PLAN).read_bytes()).cluster_id
    catalog = Catalog(data_dir, cluster_id=cluster_id)
    try:
        finish(data_dir, catalog)
    finally:
        catalog.close()
    return True


def _present(data_dir: Path) -> dict[str, TopicRow]:
    # Opening a catalog creates it, which a dry run must not do.
    if not (data_dir / FILE_NAME).exists():
        return {}
    catalog = Catalog(data_dir)
    try:
        return {row.name: row for row in catalog.topics()}
    finally:
        catalog.close()


def _planned(
    source: Source, present: dict[str, TopicRow], choice: Choice, progress: Progress
) -> Plan:
    logs = [
        path
        for topic in source.topics.values()
        if choice.wants(topic.name) and topic.name not in present
        for directory in topic.directories.values()
        for path in segments(directory)
    ]
    with progress("Reading", sum(path.stat().st_size for path in logs)) as on_progress:
        return make_plan(source, present, choice, on_progress)


def _size(files: Iterable[StagedFile]) -> int:
    return sum(file.size_bytes for file in files)


def _refuse_what_is_in_the_way(plan: Plan, data_dir: Path) -> None:
    # The next start moves the partitions on to the directories of their nodes.
    places = (data_dir, *node_directories(data_dir))
    for topic in plan.topics:
        for name in (directory.name for directory in topic.directories.values()):
            for place in places:
                if (place / name).exists():
                    raise ImportRefused(
                        f"{place / name} exists, and belongs to no topic of the data directory."
                        " Move it aside."
                    )
