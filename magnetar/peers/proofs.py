"""The proofs by which two nodes know each other: HMAC-SHA-256 over a secret of the cluster.

Both sides give a nonce, and each proves over both of them, its role and who is who. So a proof is
good for one connection and one direction. In TLS it is good for one certificate of the node that
dials, too, so what stands between two nodes cannot pass it on. The secret itself is never sent. It
is derived from the one that the catalog keeps for the cluster, so that the catalog's has no second
use.
"""

from __future__ import annotations

import hmac
from struct import Struct
from typing import NamedTuple

NONCE_BYTES = 32
#: The length of a nonce is checked, so that no two introductions have the same bytes.
_WHO = Struct(">iqqi")


class Introduction(NamedTuple):
    """The two nodes of a connection, and the nonces over which each proves to know the secret."""

    cluster_id: str
    dialler: int
    incarnation: int
    connection: int
    listener: int
    dialler_nonce: bytes
    listener_nonce: bytes
    channel: bytes = b""
    """With TLS the digest of the dialler's certificate, as each side has it (`tls`)."""


def key_of(cluster_secret: bytes) -> bytes:
    """Return the key of the proofs between nodes. Raises ValueError for an empty secret."""
    if not cluster_secret:
        raise ValueError(
            "the catalog has no secret: nodes could not tell each other from strangers"
        )
    return hmac.digest(cluster_secret, b"magnetar peers 1", "sha256")


def listener_proof(key: bytes, introduction: Introduction) -> bytes:
    """Return what proves the node that listens."""
    return _proof(key, b"listener", introduction)


def dialler_proof(key: bytes, introduction: Introduction) -> bytes:
    """Return what proves the node that dials."""
    return _proof(key, b"dialler", introduction)


def is_proven(proof: bytes, expected: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(proof, expected)


def _proof(key: bytes, role: bytes, said: Introduction) -> bytes:
    nonces: tuple[bytes, ...] = (said.dialler_nonce, said.listener_nonce)
    if {len(nonce) for nonce in nonces} != {NONCE_BYTES}:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    who = _WHO.pack(said.dialler, said.incarnation, said.connection, said.listener)
    cluster = said.cluster_id.encode()
    if said.channel:
        # Another role, so that a proof in plain text is none in TLS.
        role, nonces = role + b" in TLS", (*nonces, said.channel)
    # Fixed sizes first and the text last: the parts cannot be cut in another way.
    return hmac.digest(key, b"\0".join((role, b"".join((who, *nonces, cluster)))), "sha256")
