"""Tagged fields of magnetar's own in DescribeTransactions and ListTransactions, which other clients
skip.

tag 1000   16 bytes   TxnId of the current or last transaction
tag 1001   UTF-8      of a child in joint transactions: its parent's transactional id
tag 1002   children   of a parent, also of an unknown one: its children that are open or have
                      voted; for each the size of its id in UTF-8 (2 bytes), and the id
tag 1003   empty      of a child that has voted: clients refuse states that Kafka does not
                      have, so its state is told as Ongoing
tag 1004   client     the client that last spoke for the id, while the coordinator runs: the size of
                      its client id in UTF-8 (2 bytes), the client id, its address in UTF-8
tag 1005   empty      of a list: it leaves some out, which the client may not describe
tag 1006   shards     of a list: how many partitions `__transaction_state` has (4 bytes), and those
                      of them that the list is of (4 bytes each)
"""

from __future__ import annotations

from collections.abc import Iterable

from wire.errors import WireError

TXN_ID_TAG = 1000
PARENT_TAG = 1001
CHILDREN_TAG = 1002
VOTED_TAG = 1003
CLIENT_TAG = 1004
HIDDEN_TAG = 1005
SHARDS_TAG = 1006

_SIZE_BYTES = 2
_SHARD_BYTES = 4


def encode_children(transactional_ids: Iterable[str]) -> bytes:
    """Return the value of tag 1002."""
    names = [each.encode() for each in transactional_ids]
    return b"".join(len(name).to_bytes(_SIZE_BYTES) + name for name in names)


def decode_children(value: bytes) -> list[str]:
    """Return the transactional ids in tag 1002. WireError: cut short, or no utf-8."""
    rest = memoryview(value)
    found = []
    while rest:
        end = _SIZE_BYTES + int.from_bytes(rest[:_SIZE_BYTES])
        if len(rest) < end:
            raise WireError("children of a transactional id: cut short")
        try:
            found.append(str(rest[_SIZE_BYTES:end], "utf-8"))
        except UnicodeDecodeError:
            raise WireError("children of a transactional id: no utf-8") from None
        rest = rest[end:]
    return found


def encode_client(client_id: str, address: str) -> bytes:
    """Return the value of tag 1004."""
    name = client_id.encode()
    return len(name).to_bytes(_SIZE_BYTES) + name + address.encode()


def decode_client(value: bytes) -> tuple[str, str]:
    """Return client id and address in tag 1004. WireError: cut short, or no utf-8."""
    end = _SIZE_BYTES + int.from_bytes(value[:_SIZE_BYTES])
    if len(value) < end:
        raise WireError("client of a transactional id: cut short")
    try:
        return str(value[_SIZE_BYTES:end], "utf-8"), str(value[end:], "utf-8")
    except UnicodeDecodeError:
        raise WireError("client of a transactional id: no utf-8") from None


def encode_shards(count: int, listed: Iterable[int]) -> bytes:
    """Return the value of tag 1006."""
    return b"".join(each.to_bytes(_SHARD_BYTES) for each in (count, *listed))


def decode_shards(value: bytes) -> tuple[int, set[int]]:
    """Return how many shards there are, and those in a list, of tag 1006. WireError: cut short."""
    if not value or len(value) % _SHARD_BYTES:
        raise WireError("shards of a list of transactions: cut short")
    starts = range(0, len(value), _SHARD_BYTES)
    count, *listed = (int.from_bytes(value[start : start + _SHARD_BYTES]) for start in starts)
    return count, {*listed}
