"""Nodes of two builds run together during a restart, so each reads what the other one writes.

The frames below are those of `VERSION` 0. A build that writes others, or gives them another
meaning, takes the next `VERSION` (`magnetar.runtime.peer_messages` says what else it has to do).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from coordinator.transactions.commit_plan import MarkerWork, Part
from coordinator.transactions.metadata import TopicPartition
from logstore.remote.commit_store import Basis
from magnetar.peers.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_head,
)
from magnetar.peers.proofs import (
    NONCE_BYTES,
    Introduction,
    dialler_proof,
    listener_proof,
)
from magnetar.runtime import holds_elsewhere, marker_messages
from magnetar.runtime.bases import name_basis
from magnetar.runtime.peer_messages import (
    VERSION,
    CatalogChangedRequest,
    CatalogChangedResponse,
    FindProducersRequest,
    FindProducersResponse,
    FoundProducer,
    HeldTopic,
    HoldsToldRequest,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerProofRequest,
    PeerProofResponse,
)
from tests.magnetar.peer_cluster import SECRET, Cluster
from wire.message import Message
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from wire.messages.write_txn_markers import WriteTxnMarkersRequest


class Bases:
    """A node's last commit, which its messages rest on."""

    def basis(self) -> Basis:
        return Basis(3, 4, 5)

    def rest_on(self, basis: Basis) -> None:
        raise AssertionError("no message is read here")


class Frame(NamedTuple):
    """A message, its version, and its frame, without the size that is before it."""

    message: Message
    version: int
    hex: str


def markers(part: Part, *, is_resting: bool) -> WriteTxnMarkersRequest:
    partitions = (TopicPartition("orders", 3), TopicPartition("orders", 1))
    work = MarkerWork("etl", 7, 2, True, partitions, 2)
    request = WriteTxnMarkersRequest(markers=[marker_messages.marker_of(work, 9, part)])
    name_basis(request, Bases() if is_resting else None)
    return request


REQUESTS = {
    "hello": Frame(
        PeerHelloRequest(
            cluster_id="c", node_id=1, incarnation=2, connection=3, nonce=b"n" * NONCE_BYTES
        ),
        VERSION,
        "4e200000000000110004706565720001630000000100000000000000020000000000000003000000"
        "206e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e",
    ),
    "proof": Frame(PeerProofRequest(proof=b"p"), 0, "4e210000000000110004706565720000000170"),
    "catalog changed": Frame(
        CatalogChangedRequest(version=5), 0, "4e220000000000110004706565720000000000000005"
    ),
    "find producers": Frame(
        FindProducersRequest(producer_ids=[7, 8]),
        0,
        "4e230000000000110004706565720000000200000000000000070000000000000008",
    ),
    "holds told": Frame(
        HoldsToldRequest(
            transactional_id="etl",
            producer_id=7,
            producer_epoch=2,
            topics=[HeldTopic(name="orders", partitions=[1, 3])],
        ),
        0,
        "4e24000000000011000470656572000365746c000000000000000700020000000100066f72646572"
        "73000000020000000100000003",
    ),
    "hold": Frame(
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="etl",
                    producer_id=7,
                    producer_epoch=2,
                    topics=[AddPartitionsToTxnTopic(name="orders", partitions=[1])],
                )
            ]
        ),
        holds_elsewhere.VERSION,
        "001800050000001100047065657200020465746c000000000000000700020002076f726465727302"
        "00000001000000",
    ),
    "markers": Frame(
        markers(Part.MARKERS, is_resting=False),
        marker_messages.VERSION,
        "001b0002000000110004706565720002000000000000000700020102076f72646572730300000001"
        "000000030000000009020000",
    ),
    "markers again, resting on a commit": Frame(
        markers(Part.MISSING_MARKERS, is_resting=True),
        marker_messages.VERSION,
        "001b0002000000110004706565720002000000000000000700020102076f72646572730300000001"
        "0000000300000000090201e8070001e907140000000300000000000000040000000000000005",
    ),
}
RESPONSES = {
    "hello": Frame(
        PeerHelloResponse(node_id=2, nonce=b"n", proof=b"p"),
        VERSION,
        "0000001100000002000000016e0000000170",
    ),
    "proof": Frame(PeerProofResponse(error_code=47), 0, "00000011002f"),
    "catalog changed": Frame(CatalogChangedResponse(error_code=7), 0, "000000110007"),
    "find producers": Frame(
        FindProducersResponse(
            producers=[FoundProducer(producer_id=7, coordinator_epoch=9, key=b"k", value=b"v")],
            shards=[4],
        ),
        0,
        "0000001100000001000000000000000700000009000000016b00000001760000000100000004",
    ),
}


@pytest.mark.parametrize("said", REQUESTS.values(), ids=REQUESTS)
def test_a_request_is_what_other_builds_read_and_write(said: Frame) -> None:
    frame = encode_request(said.message, said.version, 17)[4:]
    assert frame.hex() == said.hex
    assert request_head(frame) == (said.message.api_key, said.version, 17)
    assert decode_request(frame, type(said.message), said.version) == said.message


@pytest.mark.parametrize("said", RESPONSES.values(), ids=RESPONSES)
def test_a_response_is_what_other_builds_read_and_write(said: Frame) -> None:
    frame = encode_response(said.message, said.version, 17)[4:]
    assert frame.hex() == said.hex
    assert decode_response(frame, type(said.message), said.version) == said.message


def test_a_proof_is_the_one_that_other_builds_expect() -> None:
    said = Introduction("c", 1, 2, 3, 4, b"n" * NONCE_BYTES, b"m" * NONCE_BYTES, b"channel")
    assert (
        listener_proof(SECRET, said).hex()
        == "3e6b162841629a36350fa3faf285c42e6756d23b303823b5c9669d54d4c612b8"
    )
    assert (
        dialler_proof(SECRET, said).hex()
        == "f6b36b4010f73a43e6c36f93bf371a2c599c86756d5e428fb90ca4092214eba4"
    )


async def test_a_node_whose_build_speaks_otherwise_is_refused_and_the_log_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, over_tcp=True)
    await cluster.start(2)
    reader, writer = await asyncio.open_connection(*cluster.addresses[2])
    later = bytearray(encode_request(PeerHelloRequest(cluster_id="cluster", node_id=1), VERSION, 0))
    later[6:8] = (VERSION + 1).to_bytes(2, "big")
    writer.write(bytes(later))
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    cluster.close()
    assert (
        f"it speaks version {VERSION + 1} of the requests between nodes, and this node version"
        f" {VERSION}: stop all nodes, and start one magnetar on all of them"
    ) in capsys.readouterr().err
