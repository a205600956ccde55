"""What nodes tell each other that is not durable yet, and how it is kept from outliving its basis.

In a cluster an append is ordered before it is durable (`logstore.sync.committed_ledger`). A node
may tell others what it has ordered: a hold of a partition, or the decision over a transaction. The
message names the basis, by a tagged field of our own. The node that hears it lets its later commits
rest on that. So what it writes because of the message is never there without the append, whatever
fails over or dies. Between workers of one machine no basis is named: what they tell is durable.
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
    """Say in a message on what the node that hears it rests."""
    basis = None if bases is None else bases.basis()
    if basis is not None:
        message.unknown_tags = ((_TAG, _BASIS.pack(*basis)),)


def rest_on_basis(message: Message, bases: Bases | None) -> None:
    """Rest on what a message names, before anything is appended because of it. Raises WireError."""
    for tag, data in message.unknown_tags:
        if tag == _TAG and bases is not None:
            if len(data) != _BASIS.size:
                raise WireError(f"a basis of {len(data)} bytes")
            bases.rest_on(Basis(*_BASIS.unpack(data)))
