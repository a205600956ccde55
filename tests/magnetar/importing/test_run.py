"""`magnetar import`: all or nothing, whatever interrupts it; refusals by name."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logstore.disk.checkpoints import encode_partition_metadata
from magnetar.cli.main import main
from magnetar.importing import staging
from magnetar.importing.metadata_log import read_cluster_metadata
from magnetar.importing.plan import Choice
from magnetar.importing.run import import_directories
from magnetar.importing.source import held
from magnetar.storage.catalog import Catalog
from magnetar.testing import start_broker
from tests.logstore.partitions import batch_of
from tests.magnetar.importing.conftest import (
    GONE,
    ORDERS,
    SEGMENT,
    at,
    contents,
    framed,
    metadata_log,
    run,
)
from wire.internal.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from wire.records import build_batch, build_marker


def test_topics_come_with_names_ids_settings_and_the_clusters_id(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "data"
    result = run(source, "--data-dir", target, "--config", "ord*:segment.bytes=1048576")
    assert result.exit_code == 0, result.output
    assert "of.a.later.kafka=5 is left out" in result.stderr
    catalog = Catalog(target)
    (row,) = catalog.topics()
    assert (row.id, row.name, row.partition_count) == (ORDERS, "orders", 2)
    assert row.configs == {"retention.ms": "5", "segment.bytes": "1048576"}
    assert catalog.cluster_id() == "the-cluster"
    assert catalog.allocate_producer_ids(1) == 2000
    assert catalog.next_broker_epoch() > 3, "above the leader epochs found"
    catalog.close()
    expected = {
        name: data
        for name, data in contents(source).items()
        if not name.startswith("__cluster_metadata")
    }
    assert contents(target) == expected
    checkpoint = (target / "recovery-point-offset-checkpoint").read_text()
    assert checkpoint.splitlines()[1:] == ["2", "orders 0 2", "orders 1 1"]


class Interrupted(BaseException):
    """The process ends here."""


def interruptions(monkeypatch: pytest.MonkeyPatch, at_call: int) -> Callable[[], bool]:
    """Let call number `at_call` of what changes the disk raise; return whether it was made."""
    calls = itertools.count()
    reached = False

    def interrupting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal reached
            if next(calls) == at_call:
                reached = True
                raise Interrupted
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (os, "fsync"),
        (os, "link"),
        (shutil, "copystat"),
        (Path, "rename"),
        (Path, "rmdir"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (Catalog, "add_topic"),
        (Catalog, "reserve_producer_ids_below"),
        (Catalog, "raise_broker_epoch"),
    ):
        monkeypatch.setattr(owner, name, interrupting(getattr(owner, name)))
    return lambda: reached


def no_progress(label: str, total: int) -> Any:
    from contextlib import nullcontext

    return nullcontext(lambda done: None)


def test_an_import_interrupted_anywhere_is_repeated_cleanly(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(source)

    def attempt(target: Path) -> None:
        import_directories(
            [source], target, Choice(), link=True, dry_run=False, progress=no_progress
        )

    whole = tmp_path / "whole"
    attempt(whole)
    for call in itertools.count():
        target = tmp_path / f"interrupted-{call}"
        with monkeypatch.context() as patches:
            reached = interruptions(patches, call)
            if not reached():
                try:
                    attempt(target)
                except Interrupted:
                    pass
                else:
                    break
        if (target / "catalog.sqlite").exists() and not (target / ".import" / "plan.json").exists():
            catalog = Catalog(target)
            assert len(catalog.topics()) in (0, 1)
            catalog.close()
        attempt(target)
        assert contents(target) == contents(whole), f"interrupted at call {call}"
        catalog = Catalog(target)
        assert [row.name for row in catalog.topics()] == ["orders"]
        catalog.close()
        assert not any((target / ".import").glob("*"))
    assert call > 20
    assert contents(source) == before


def test_a_broker_that_starts_completes_an_interrupted_import(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data"
    with monkeypatch.context() as patches:
        patches.setattr(Catalog, "add_topic", _interrupt)
        with pytest.raises(Interrupted):
            import_directories(
                [source], target, Choice(), link=False, dry_run=False, progress=no_progress
            )
    with start_broker(target) as broker:
        arguments = ["topics", "list", "--json", "-b", broker.bootstrap_servers]
        listed = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert [(topic["topic"], topic["partitions"]) for topic in listed] == [("orders", 2)]
    assert not (target / ".import").exists()


def _interrupt(*_: object) -> None:
    raise Interrupted


def open_transaction(source: Path) -> None:
    batch = batch_of(b"c", producer_id=41, epoch=0, sequence=0, transactional=True)
    with (source / "orders-1" / SEGMENT.format(0)).open("ab") as file:
        file.write(at(1, batch))


def test_an_open_transaction_without_its_coordinator_is_refused(
    source: Path, tmp_path: Path
) -> None:
    open_transaction(source)
    refused = run(source, "--data-dir", tmp_path / "data")
    assert refused.exit_code == 1
    assert "orders-1: the transaction of producer 41 is open since offset 1" in refused.stderr
    assert not (tmp_path / "data" / "catalog.sqlite").exists()
    assert run(source, "--data-dir", tmp_path / "data", "--abort-open").exit_code == 0
    with start_broker(tmp_path / "data") as broker:
        arguments = ["topics", "describe", "orders", "--json", "-b", broker.bootstrap_servers]
        (topic,) = json.loads(CliRunner().invoke(main, arguments).stdout)
    partition = topic["partitions"][1]
    assert partition["last_stable_offset"] == partition["high_watermark"] == 3, "with its marker"


def test_an_ended_transaction_is_not_refused_and_its_epochs_count(
    source: Path, tmp_path: Path
) -> None:
    open_transaction(source)
    marker = build_marker(
        base_offset=2,
        producer_id=5000,
        producer_epoch=0,
        coordinator_epoch=77,
        commit=True,
        timestamp_ms=0,
    )
    ended = build_marker(
        base_offset=3,
        producer_id=41,
        producer_epoch=0,
        coordinator_epoch=1,
        commit=False,
        timestamp_ms=0,
    )
    with (source / "orders-1" / SEGMENT.format(0)).open("ab") as file:
        file.write(marker + ended)
    assert run(source, "--data-dir", tmp_path / "data").exit_code == 0
    catalog = Catalog(tmp_path / "data")
    assert catalog.allocate_producer_ids(1) == 5001
    assert catalog.next_broker_epoch() == 78
    catalog.close()


@pytest.mark.parametrize("way", ["imported", "adopted"])
def test_a_producer_id_that_no_broker_gave_out_uses_up_no_others(
    source: Path, tmp_path: Path, way: str
) -> None:
    """A producer may write any; the ids above it would soon be none."""
    made_up = batch_of(b"c", producer_id=2**63 - 1, epoch=0, sequence=0)
    given_out = batch_of(b"d", producer_id=5000, epoch=0, sequence=0)
    with (source / "orders-1" / SEGMENT.format(0)).open("ab") as file:
        file.write(at(1, given_out) + at(2, made_up))
    (source / "recovery-point-offset-checkpoint").unlink()
    data = tmp_path / "data"
    if way == "imported":
        assert run(source, "--data-dir", data).exit_code == 0
    else:
        data.mkdir()
        shutil.copytree(source / "orders-1", data / "orders-1")
    with start_broker(data) as broker:
        arguments = ["topics", "describe", "orders", "--json", "-b", broker.bootstrap_servers]
        (topic,) = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert topic["partitions"][1]["high_watermark"] == 3
    catalog = Catalog(data)
    assert 5001 <= catalog.allocate_producer_ids(1) < 7000
    catalog.close()


def remove_partition(source: Path) -> None:
    shutil.rmtree(source / "orders-0")


def damage(source: Path) -> None:
    path = source / "orders-0" / SEGMENT.format(0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def interrupt_cleaning(source: Path) -> None:
    (source / "orders-0" / f"{SEGMENT.format(0)}.swap").touch()


def forget(source: Path) -> None:
    shutil.rmtree(source / "__cluster_metadata-0")
    metadata_log(source / "__cluster_metadata-0", ProducerIdsRecord(next_producer_id=1))


def damage_metadata(source: Path) -> None:
    (source / "__cluster_metadata-0" / SEGMENT.format(0)).write_bytes(b"x" * 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_partition, "orders: 1 of its 2 partitions are not here (0)"),
        (damage, "orders-0: damaged at"),
        (interrupt_cleaning, "in the middle of a compaction; start it once and stop it cleanly"),
        (forget, "orders: its cluster does not know this topic"),
        (damage_metadata, "the cluster's metadata cannot be read"),
    ],
)
def test_what_cannot_be_imported_is_named(
    source: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    change(source)
    refused = run(source, "--data-dir", tmp_path / "data")
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert contents(tmp_path / "data") == {}


def test_a_tail_that_a_crash_tore_is_left_to_recovery(source: Path, tmp_path: Path) -> None:
    (source / ".kafka_cleanshutdown").unlink()
    with (source / "orders-0" / SEGMENT.format(1)).open("ab") as file:
        file.write(at(2, batch_of(b"torn"))[:-3])
    with (source / "__cluster_metadata-0" / SEGMENT.format(0)).open("ab") as file:
        file.write(at(6, batch_of(b"torn"))[:-3])
    assert run(source, "--data-dir", tmp_path / "data").exit_code == 0
    with start_broker(tmp_path / "data") as broker:
        arguments = ["topics", "describe", "orders", "--json", "-b", broker.bootstrap_servers]
        (topic,) = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert [each["high_watermark"] for each in topic["partitions"]] == [2, 1]


def test_a_log_that_a_crash_tore_makes_no_clean_stop_whenever_power_goes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / ".kafka_cleanshutdown").unlink()
    target = tmp_path / "data"
    with start_broker(target):
        pass
    done: list[tuple[str, Path]] = []
    unlink, sync = Path.unlink, staging.sync

    def note_unlink(path: Path, **options: bool) -> None:
        done.append(("unlink", path))
        unlink(path, **options)

    def note_sync(path: Path) -> None:
        done.append(("sync", path))
        sync(path)

    monkeypatch.setattr(Path, "unlink", note_unlink)
    monkeypatch.setattr(staging, "sync", note_sync)
    assert (target / ".kafka_cleanshutdown").exists()
    import_directories([source], target, Choice(), link=False, dry_run=False, progress=no_progress)
    marker_gone = done.index(("unlink", target / ".kafka_cleanshutdown"))
    plan_gone = done.index(("unlink", target / staging.PLAN))
    assert ("sync", target) in done[marker_gone:plan_gone]


def test_a_topic_of_only_that_is_not_there_is_told(source: Path, tmp_path: Path) -> None:
    ended = run(source, "--data-dir", tmp_path / "data", "--only", "order*", "--only", "nosuch")
    assert ended.exit_code == 1
    assert "there is no topic nosuch" in ended.stderr


def test_another_topic_of_that_name_is_refused(source: Path, tmp_path: Path) -> None:
    assert run(source, "--data-dir", tmp_path / "data").exit_code == 0
    for index in range(2):
        path = source / f"orders-{index}" / "partition.metadata"
        path.write_bytes(encode_partition_metadata(GONE))
    refused = run(source, "--data-dir", tmp_path / "data")
    assert "the data directory has another topic of that name" in refused.stderr


def test_the_directories_of_one_broker_are_imported_together(source: Path, tmp_path: Path) -> None:
    second = tmp_path / "second disk"
    second.mkdir()
    (source / "orders-1").rename(second / "orders-1")
    shutil.copy(source / "meta.properties", second)
    assert "1 of its 2 partitions" in run(source, "--data-dir", tmp_path / "data").stderr
    assert run(source, second, "--data-dir", tmp_path / "data").exit_code == 0
    assert (tmp_path / "data" / "orders-1" / SEGMENT.format(0)).exists()
    (second / "meta.properties").write_text("cluster.id=another\n")
    refused = run(source, second, "--data-dir", tmp_path / "other")
    assert "belongs to cluster another" in refused.stderr
    shutil.copy(source / "meta.properties", second)
    shutil.copytree(source / "orders-0", second / "orders-0")
    refused = run(source, second, "--data-dir", tmp_path / "other")
    assert "are the same partition" in refused.stderr


def test_a_directory_of_a_later_kafka_is_not_imported(source: Path, tmp_path: Path) -> None:
    path = source / "meta.properties"
    path.write_text(path.read_text().replace("version=1", "version=99"))
    refused = run(source, "--data-dir", tmp_path / "data")
    assert refused.exit_code == 1
    assert f"{source}: meta.properties has version 99, and only 0 and 1" in refused.stderr
    assert not [*(tmp_path / "data").glob("orders-*")]


def test_holes_in_index_files_neither_count_nor_fill_the_disk(source: Path, tmp_path: Path) -> None:
    index = source / "orders-0" / SEGMENT.format(0).replace(".log", ".index")
    # As Kafka allocates it; what is behind the entries is a hole.
    index.write_bytes(bytes((0, 0, 0, 1, 0, 0, 0, 1)))
    os.truncate(index, 10 << 20)
    target = tmp_path / "data"
    result = run(source, "--data-dir", target, "--json")
    (report,) = json.loads(result.stdout)
    assert report["size_bytes"] < 1 << 20
    copy = target / "orders-0" / index.name
    assert copy.read_bytes() == index.read_bytes()
    assert copy.stat().st_blocks * 512 < 1 << 20


def test_a_topic_that_was_deleted_can_be_imported_again(source: Path, tmp_path: Path) -> None:
    """Its files are not taken for remains of the deleted one when the broker starts."""
    target = tmp_path / "data"
    assert run(source, "--data-dir", target).exit_code == 0
    catalog = Catalog(target)
    catalog.remove_topics([ORDERS])
    catalog.close()
    for index in range(2):
        shutil.rmtree(target / f"orders-{index}")
    assert run(source, "--data-dir", target).exit_code == 0
    catalog = Catalog(target)
    assert ORDERS not in catalog.deleted_topics()
    catalog.close()


@pytest.mark.parametrize("side", ["source", "data"])
def test_a_running_broker_on_either_side_is_refused(
    side: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "data"
    target.mkdir()
    with held(source if side == "source" else target, create=True):
        refused = run(source, "--data-dir", target)
    assert refused.exit_code == 1
    assert "a broker is running on" in refused.stderr


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "metadata"


def test_what_the_controller_aborted_never_was(metadata: Path) -> None:
    metadata_log(
        metadata,
        TopicRecord(name="orders", topic_id=ORDERS),
        BeginTransactionRecord(),
        TopicRecord(name="gone", topic_id=GONE),
        AbortTransactionRecord(),
        BeginTransactionRecord(),
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1"),
        EndTransactionRecord(),
    )
    found = read_cluster_metadata(metadata)
    assert [topic.name for topic in found.topics.values()] == ["orders"]
    assert found.topic_configs == {"orders": {"retention.ms": "1"}}


def test_a_snapshot_counts_and_what_comes_after_it(metadata: Path) -> None:
    metadata_log(
        metadata,
        TopicRecord(name="gone", topic_id=GONE),
        ConfigRecord(resource_type=2, resource_name="gone", name="retention.ms", value="1"),
        RemoveTopicRecord(topic_id=GONE),
        ProducerIdsRecord(next_producer_id=1000),
    )
    snapshot = build_batch([framed(TopicRecord(name="orders", topic_id=ORDERS))])
    (metadata / "00000000000000000003-0000000001.checkpoint").write_bytes(snapshot)
    found = read_cluster_metadata(metadata)
    assert [topic.name for topic in found.topics.values()] == ["orders"]
    assert found.next_producer_id == 1000
    assert found.topic_configs == {}
