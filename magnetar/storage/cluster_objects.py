"""Which bucket a cluster keeps its older batches in: the database remembers it for all nodes.

References in the database name objects of that bucket, so all nodes need the same one, for good.
Several clusters may name one bucket: each has the objects below a prefix of its own.
"""

from __future__ import annotations

from hashlib import blake2b

from logstore.remote.commit_store import LogKey
from logstore.remote.offload import PREFIX
from logstore.remote.remote_ledger import MOVED_TO
from magnetar.config.load import ConfigError
from magnetar.storage.catalog import Catalog

#: Where it stands among the settings of resources: no client can name a resource of this type.
RESOURCE = _TYPE, _NAME = -1, "objects"
_URL = "url"


def objects_url(catalog: Catalog) -> str:
    """Return the URL of the cluster's bucket; "" where it has none."""
    return catalog.resource_configs().get((_TYPE, _NAME), {}).get(_URL, "")


def objects_prefix(catalog: Catalog) -> str:
    """Return what the keys of this database's objects begin with, and those of no other.

    By the secret, since an import brings the id of the cluster along.
    """
    return f"{PREFIX}/{blake2b(catalog.secret(), digest_size=8, person=b'objects').hexdigest()}"


def moved_logs(catalog: Catalog) -> list[LogKey]:
    """Return the logs of which anything has moved to the bucket."""
    with catalog.database.statements("look at the bucket's use") as queries:
        moved = "SELECT topic_id, partition FROM attachments WHERE name = ?"
        return [LogKey(*row) for row in queries.execute(moved, (MOVED_TO,))]


def agreed_objects(catalog: Catalog, asked: str, owner: str) -> str:
    """Return the URL of the cluster's bucket, which is `asked` where it had none yet.

    Also where it has another one, in which nothing is yet, and no node of another place than
    `owner` lives: a mistake can be mended. Call it when the ids of this place are claimed. Raises
    ConfigError where the cluster has another bucket.
    """
    known = objects_url(catalog)
    if not asked or asked == known:
        return known
    if known and not _may_change(catalog, owner):
        raise ConfigError(
            f"--objects {asked}: this cluster keeps its objects at {known}. Name that, or leave"
            " --objects out. It can be changed only before any batch has moved there, and while no"
            " other node lives."
        )
    catalog.set_resource_configs(_TYPE, _NAME, {_URL: asked})
    return asked


def _may_change(catalog: Catalog, owner: str) -> bool:
    with catalog.database.statements("look at the bucket's use") as queries:
        # The commit that moves the first batch of a log writes it.
        moved = queries.execute("SELECT 1 FROM attachments WHERE name = ? LIMIT 1", (MOVED_TO,))
        # Nodes that are starting count too: they have a lease.
        others = "SELECT 1 FROM nodes WHERE is_leased(lease_until) AND owner <> ? LIMIT 1"
        return moved.fetchone() is None and queries.execute(others, (owner,)).fetchone() is None
