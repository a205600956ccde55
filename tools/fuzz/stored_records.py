"""Records of groups and transactions as a log has them, through the decoders and the fold.

An input is a list of records: kind (0: groups, 1: transactions), then key and value, each after
its length in four bytes; a length of -1 stands for none. A log that another broker wrote may hold
anything: a start says so (WireError), and does nothing else that is unexpected.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from struct import Struct
from struct import error as StructError

from coordinator.groups import records as group_records
from coordinator.groups.classic.group import GroupLimits
from coordinator.groups.shard import GroupShard
from coordinator.transactions import records as transaction_records
from coordinator.transactions.metadata import TransactionMetadata
from coordinator.transactions.shard import Shard
from tools.fuzz.messages import declared
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge
from tools.fuzz.values import Words, message
from wire.errors import WireError
from wire.internal.versioned import encode_versioned
from wire.message import RecordKey

_LENGTH = Struct(">i")
_WORDS: Words = {
    "group_id": lambda random: random.choice("gh"),
    "group": lambda random: random.choice("gh"),
    "member_id": lambda random: random.choice("mn"),
    "transactional_id": lambda random: random.choice("tu"),
    "transaction_status": lambda random: random.randrange(8),
    "topic": lambda random: random.choice("ab"),
    "partition": lambda random: random.randrange(3),
    "producer_epoch": lambda random: random.randrange(3),
    "producer_id": lambda random: random.randrange(3),
}
#: Tags of our own in a transaction's record.
_TAGS = (1000, 1001, 1002, 1003)


def _generate(random: Random) -> bytes:
    kind = random.randrange(2)
    parts = [bytes((kind,))]
    names = ["TransactionLogKey"] if kind else _group_keys()
    for _ in range(random.choice((1, 3, 8))):
        name = random.choice(names)
        key = encode_versioned(message(random, declared()[name], 0, _WORDS))
        value = _value(random, name.removesuffix("Key") + "Value")
        if random.random() < 0.1:
            key = mutated(random, key)
        parts += [_field(key), _field(value)]
    return b"".join(parts)


def _group_keys() -> list[str]:
    return [
        name
        for name, cls in sorted(declared().items())
        if issubclass(cls, RecordKey) and name.startswith(("ConsumerGroup", "Group", "Offset"))
    ]


def _value(random: Random, name: str) -> bytes | None:
    cls = declared().get(name)
    if cls is None or random.random() < 0.2:
        return None
    version = random.randint(cls.min_version, cls.max_version)
    made = message(random, cls, version, _WORDS)
    if cls.flexible_since is not None and version >= cls.flexible_since:
        tags = sorted(random.sample(_TAGS, random.randrange(3)))
        made.unknown_tags = tuple((tag, random.randbytes(random.randrange(20))) for tag in tags)
    try:
        value = encode_versioned(made, version)
    except WireError:
        return None
    return mutated(random, value) if random.random() < 0.3 else value


def _field(data: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if data is None else _LENGTH.pack(len(data)) + data


def _records(given: bytes) -> Iterator[tuple[bytes | None, bytes | None]]:
    position = 1
    while position < len(given):
        pair: list[bytes | None] = []
        for _ in range(2):
            try:
                (length,) = _LENGTH.unpack_from(given, position)
            except StructError:
                return
            position += _LENGTH.size
            pair.append(None if length < 0 else given[position : position + length])
            position += max(length, 0)
        yield pair[0], pair[1]


def _run(given: bytes) -> None:
    if given[:1] == b"\x01":
        _run_transactions(given)
    else:
        _run_groups(given)


def _run_groups(given: bytes) -> None:
    shard = GroupShard(GroupLimits())
    for offset, (key, value) in enumerate(_records(given)):
        try:
            record = group_records.decode(key, value)
        except WireError:
            continue
        if record is None:
            continue
        # The first writing drops what older versions of a value had.
        key, value = group_records.encode(record)
        again = group_records.decode(key, value)
        judge(
            again is not None and group_records.encode(again) == (key, value),
            "a record of a group is written as it was read",
        )
        try:
            if offset % 3:
                shard.apply(record, offset)
            else:
                shard.apply_pending(record, offset, offset % 2, 0)
                shard.apply_marker(offset % 2, 0, commit=offset % 4 == 0)
        except WireError:
            return
    for group_id in shard.group_ids():
        shard.exists(group_id)
    shard.resume(5)


def _run_transactions(given: bytes) -> None:
    shard = Shard(0)
    for offset, (key, value) in enumerate(_records(given)):
        try:
            txn = transaction_records.decode_record(key, value)
        except WireError:
            continue
        if isinstance(txn, TransactionMetadata):
            # What the first writing drops (an EMPTY one has no partitions) does not come back.
            record = transaction_records.encode_record(txn)
            again = transaction_records.decode_record(record.key, record.value)
            judge(
                again is not None and transaction_records.encode_record(again) == record,
                "a transaction is written as it was read",
            )
            shard.apply(txn, offset)
    shard.work_due()


TARGET = Target("stored_records", _generate, _run)
