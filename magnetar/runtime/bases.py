"""Messages between nodes about appends that are not durable yet, and the commit that they rest on.

In a cluster an append is ordered before it is durable (`logstore.sync.committed_ledger`). A node
may tell others of an ordered append: a hold of a partition, or the decision over a transaction. The
message names the node's last commit, the *basis*, in a tagged field of our own. The node that gets
the message lets its later commits rest on the basis. So no fail-over and no death leaves what it
writes because of the message without the append. Between workers of one machine no basis is named,
since all that they tell is durable.
"""

from __future__ import annotations

from struct import Struct

from logstore.remote.commit_store import Bases, Basis
from wire.errors import WireError
from wire.message import Message

_TAG = 1001
#: Node, incarnation, number of the commit.
_BASIS = Struct(">iqq")


def name_basis(message: Message, bases: Bases | None) -> None:
    """Name in a message the commit of this node that the receiver has to rest on, if any."""
    basis = None if bases is None else bases.basis()
    if basis is not None:
        message.unknown_tags = ((_TAG, _BASIS.pack(*basis)),)


def rest_on_basis(message: Message, bases: Bases | None) -> None:
    """Rest on the commit that a message names. Call it before anything is appended because of it.

    Raises WireError.
    """
    for tag, data in message.unknown_tags:
        if tag == _TAG and bases is not None:
            if len(data) != _BASIS.size:
                raise WireError(f"a basis of {len(data)} bytes")
            bases.rest_on(Basis(*_BASIS.unpack(data)))
