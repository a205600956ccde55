"""A basis goes with what rests on it, from one node to the other."""

from __future__ import annotations

import pytest

from logstore.remote.commit_store import Basis
from magnetar.runtime import holds_elsewhere, marker_messages
from magnetar.runtime.bases import name_basis, rest_on_basis
from tests.magnetar.noted_bases import NotedBases
from wire.errors import WireError
from wire.message import Message
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from wire.messages.write_txn_markers import WriteTxnMarkersRequest

BASIS = Basis(3, 2**40, 2**33)
MESSAGES = [
    (WriteTxnMarkersRequest, marker_messages.VERSION),
    (AddPartitionsToTxnResponse, holds_elsewhere.VERSION),
]


@pytest.mark.parametrize(("message_class", "version"), MESSAGES)
def test_a_message_carries_the_basis(message_class: type[Message], version: int) -> None:
    sent = message_class()
    name_basis(sent, NotedBases(BASIS))
    there = NotedBases()
    rest_on_basis(message_class.decode(sent.encode(version), version), there)
    assert there.rested_on == [BASIS]


def test_what_is_durable_needs_no_basis() -> None:
    sent, there = WriteTxnMarkersRequest(), NotedBases()
    name_basis(sent, NotedBases())
    rest_on_basis(sent, there)
    assert (sent.unknown_tags, there.rested_on) == ((), [])


def test_a_basis_of_another_length_is_no_message() -> None:
    sent = WriteTxnMarkersRequest()
    name_basis(sent, NotedBases(BASIS))
    ((tag, data),) = sent.unknown_tags
    sent.unknown_tags = ((tag, data[1:]),)
    with pytest.raises(WireError, match="19 bytes"):
        rest_on_basis(sent, NotedBases())
