"""What a node of a cluster reads when another one starts, and what it leaves when it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from magnetar.storage.catalog_rows import Change, TopicRow
from magnetar.storage.leaders import Elsewhere
from magnetar.storage.leadership import Move
from tests.magnetar.moving_nodes import MovingNodes
from tests.magnetar.nodes_in_one import two_of


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[MovingNodes]:
    async with two_of(MovingNodes(tmp_path / "data")) as started:
        await started.all_see()
        yield started


@pytest.fixture
async def nodes(both: MovingNodes) -> MovingNodes:
    # Its starts are written into the catalog alone.
    await both.kill(1)
    return both


async def test_the_start_of_another_node_reads_no_topic_again(
    nodes: MovingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, topic = nodes.nodes[0].catalog, nodes.nodes[0].topics.ensure("a")
    read: list[Sequence[UUID] | None] = []
    topics = catalog.topics

    def noted(topic_ids: Sequence[UUID] | None = None) -> list[TopicRow]:
        read.append(topic_ids)
        return topics(topic_ids)

    monkeypatch.setattr(catalog, "topics", noted)
    started = catalog.nodes.start(1)
    await nodes.nodes[0].nodes.see_changes()
    there = [one for one in topic.partitions if isinstance(one, Elsewhere)]
    assert len(there) == 2 and {*there} == {Elsewhere(1, started)}
    assert not read
    # As the catalog has it.
    (row,) = topics([topic.id])
    assert [leader for leader in row.leaders if leader.node_id == 1] == there


async def test_a_start_that_is_read_with_other_changes_is_not_missed(
    nodes: MovingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later change would tell of it."""
    catalog, topic = nodes.nodes[0].catalog, nodes.nodes[0].topics.ensure("a")
    started: list[int] = []
    changes_since = catalog.changes.since

    def overtaken(version: int) -> tuple[int, list[Change] | None, dict[int, int]]:
        monkeypatch.undo()
        started.append(catalog.nodes.start(1))
        return changes_since(version)

    monkeypatch.setattr(catalog.changes, "since", overtaken)
    catalog.nodes.start(2)
    await nodes.nodes[0].nodes.see_changes()
    there = {one for one in topic.partitions if isinstance(one, Elsewhere)}
    assert there == {Elsewhere(1, *started)}


async def test_a_start_raises_no_epoch_of_a_partition_that_has_gone_meanwhile(
    nodes: MovingNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has seen a higher epoch would not believe who leads the partition now."""
    catalog, topic = nodes.nodes[0].catalog, nodes.nodes[0].topics.ensure("a")
    partition = nodes.partition(1)
    first = catalog.nodes.start(1)
    catalog.nodes.start(2)
    changes_since = catalog.changes.since

    def overtaken(version: int) -> tuple[int, list[Change] | None, dict[int, int]]:
        read = changes_since(version)
        monkeypatch.undo()
        assert catalog.nodes.hand_over(1, first, [Move(topic.id, partition, 2)])
        assert catalog.nodes.start(1) > first
        return read

    monkeypatch.setattr(catalog.changes, "since", overtaken)
    epochs = []
    for leader in (1, 2):
        await nodes.nodes[0].nodes.see_changes()
        known = topic.partitions[partition]
        assert isinstance(known, Elsewhere) and known.node_id == leader
        epochs.append(known.leader_epoch)
    assert epochs == sorted(epochs) and epochs[0] == first


async def test_a_node_that_stops_hands_over_what_it_was_given_a_moment_before(
    both: MovingNodes,
) -> None:
    """As in a take-over that is under way: the catalog says so, and the node has not read it."""
    topic, partition = both.nodes[0].topics.ensure("a"), both.partition(1)

    async def tell_nobody() -> None:
        pass

    await both.leader_changes(1)._hand_over.perform([Move(topic.id, partition, 0)], tell_nobody)
    await both.leader_changes(0).drain((0, 1))
    assert both.nodes[0].catalog.nodes.led_counts().keys() == {1}
