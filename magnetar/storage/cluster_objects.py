"""Which bucket a cluster keeps its older batches in: the database remembers it for all nodes.

References in the database name objects of that bucket, so all nodes need the same one, for good.
Several clusters may name one bucket: each has the objects below a prefix of its own.
"""

from __future__ import annotations

from hashlib import blake2b

from logstore.remote.offload import PREFIX
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


def agreed_objects(catalog: Catalog, asked: str) -> str:
    """Return the URL of the cluster's bucket, which is `asked` where it had none yet.

    Raises ConfigError where it has another one.
    """
    known = objects_url(catalog)
    if not known and asked:
        catalog.set_resource_configs(_TYPE, _NAME, {_URL: asked})
        return asked
    if asked and asked != known:
        raise ConfigError(
            f"--objects {asked}: this cluster keeps its objects at {known}. Name that, or leave"
            " --objects out."
        )
    return known
