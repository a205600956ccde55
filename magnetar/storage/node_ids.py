"""Which id a node of a cluster has: the one it asks for, the one its place had, or a new one.

A place is a host and a data directory, held by one supervisor at a time. Two places must never have
one id: they would fence each other for ever. So an id belongs to a place until its lease has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_nodes import IdInUse

#: Several nodes may choose the same new id at the same moment.
_ATTEMPTS = 10


def claim(catalog: Catalog, owner: str, count: int, first: int | None = None) -> list[int]:
    """Return `count` ids, one after the other, for the nodes of a place, and remember them.

    `first`: the id that was asked for. Raises IdInUse.
    """
    if first is not None:
        catalog.nodes.claim(owner, range(first, first + count))
        return [*range(first, first + count)]
    for attempt in range(_ATTEMPTS):
        owners = {row.node_id: row.presence.owner for row in catalog.nodes.members()}
        wanted = _free(owners, owner, count)
        try:
            catalog.nodes.claim(owner, wanted)
        except IdInUse:
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            break
    return [*wanted]


def _free(owners: dict[int, str], owner: str, count: int) -> Sequence[int]:
    """Return the ids that the place had, or the lowest ones that no place ever had."""
    own = [node_id for node_id in sorted(owners) if owners[node_id] == owner]
    first = own[0] if own else 1
    while any(owners.get(each, owner) != owner for each in range(first, first + count)):
        first += 1
    return range(first, first + count)
