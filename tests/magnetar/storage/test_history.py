"""A database that has forgotten something is found out, and the cluster halts until that is
accepted: in SQLite and in PostgreSQL."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from magnetar.storage.catalog import Catalog
from magnetar.storage.history import (
    ClusterHalted,
    History,
    accept_loss,
    forgotten,
    halt,
    read_history,
)
from tests.magnetar.storage.test_shared_catalog import PRESENCE, Open, open_catalog

__all__ = ["open_catalog"]

KNOWN = History("cluster", 1, 5, 20, 3000, {1: (4, 10), 2: (5, 0)})


def of(catalog: Catalog) -> History:
    return read_history(catalog.database)


def test_what_a_cluster_does_moves_its_history_on(open_catalog: Open) -> None:
    catalog = open_catalog()
    seen = [of(catalog)]
    catalog.nodes.start(1, PRESENCE)
    seen.append(of(catalog))
    catalog.nodes.start(1, PRESENCE)
    seen.append(of(catalog))
    catalog.allocate_producer_ids(10)
    seen.append(of(catalog))
    assert [each.commits for each in seen[:3]] == [{}, {1: (0, 0)}, {1: (1, 0)}]
    for earlier, later in zip(seen, seen[1:], strict=False):
        assert not forgotten(earlier, later)
        assert forgotten(later, earlier)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (KNOWN._replace(commits={1: (4, 9), 2: (5, 0)}), "commit 9 is the last one of node 1"),
        (KNOWN._replace(commits={1: (3, 99), 2: (5, 0)}), "start 4 of node 1"),
        (KNOWN._replace(commits={1: (4, 10)}), "start 5 of node 2"),
        (KNOWN._replace(starts=4), "4 starts, and had 5"),
        (KNOWN._replace(changes=19), "19 changes of the catalog"),
        (KNOWN._replace(next_producer_id=2000), "2000 producer ids"),
        (KNOWN._replace(repairs=0), "a loss was accepted"),
    ],
)
def test_each_step_back_is_told(now: History, said: str) -> None:
    assert said in forgotten(KNOWN, now)


@pytest.mark.parametrize(
    "now",
    [
        KNOWN,
        # Taken over, and started anew: the numbers of commits begin again.
        KNOWN._replace(starts=6, commits={1: (6, 0), 2: (5, 1), 3: (6, 0)}),
        KNOWN._replace(repairs=2, starts=0),
        KNOWN._replace(cluster_id="other", starts=0),
        # Exported, and imported into another database.
        KNOWN._replace(database="other", starts=0, commits={}),
    ],
)
def test_what_is_no_step_back_is_not_told(now: History) -> None:
    assert not forgotten(KNOWN, now)


def test_a_database_is_known_by_what_an_import_leaves_behind(open_catalog: Open) -> None:
    first = of(open_catalog())
    assert first.database == of(open_catalog()).database != ""
    with closing(Catalog(None, cluster_id=first.cluster_id)) as other:
        assert of(other).cluster_id == first.cluster_id
        assert of(other).database != first.database


def test_a_loss_is_accepted_once_where_one_backup_takes_the_place_of_another(
    open_catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same numbers, and nodes have started since the first was accepted."""
    first = open_catalog()
    backup = of(first)
    halt(first.database, "commit 7")
    accept_loss(first.database)
    first.nodes.start(1, PRESENCE)
    known = of(first)
    assert "a loss was accepted" in forgotten(known, backup)
    with first.database.transaction("put another backup back") as statements:
        statements.execute(
            "UPDATE cluster SET repairs = ?, broker_epoch = ?, next_producer_id = ?",
            (backup.repairs, backup.starts, backup.next_producer_id),
        )
        statements.execute("DELETE FROM nodes")
    halt(first.database, "a loss was accepted")
    an_hour_later_s = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: an_hour_later_s)
    accept_loss(first.database)
    assert not forgotten(known, of(first))


def test_no_node_starts_in_a_halted_cluster_until_the_loss_is_accepted(open_catalog: Open) -> None:
    catalog = open_catalog()
    incarnation = catalog.nodes.start(1, PRESENCE)
    before = of(catalog)
    assert accept_loss(catalog.database) == ""
    assert of(catalog) == before
    halt(catalog.database, "commit 7")
    halt(open_catalog().database, "another one, told later")
    with pytest.raises(ClusterHalted, match="commit 7"):
        catalog.nodes.start(2, PRESENCE)
    assert of(catalog).commits == before.commits

    assert accept_loss(catalog.database) == "commit 7"
    after = of(catalog)
    assert not after.loss and after.repairs > before.repairs
    # Whatever still runs is fenced, and no number that was lost is given out again.
    assert after.commits[1][0] > incarnation + 1000
    assert after.next_producer_id > before.next_producer_id + 1000
    assert [row.is_live for row in catalog.nodes.members()] == [False]
    assert catalog.nodes.start(2, PRESENCE) > after.starts
    assert not forgotten(before, of(catalog))
