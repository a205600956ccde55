"""A data directory with everything that a check looks at, and every way to damage it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from logstore.disk.checkpoints import decode_offsets, encode_offsets
from logstore.partition.log import PartitionLog
from logstore.partition.transaction_buffer import TransactionMarker
from magnetar.broker import Broker
from magnetar.config.load import Given, load
from tests.logstore.partitions import batch_of
from tests.magnetar.conftest import crash

#: Segments of four batches or so, with an index entry for nearly each.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.index.interval.bytes": "1",
}
TOPIC = {"segment.index.bytes": "60"}
ROUNDS = 6
_PRODUCER = 77


async def write(log: PartitionLog, first: int, end: int) -> None:
    """Write plain batches, and a transaction in each round: the even ones are aborted."""
    for number in range(first, end):
        now_ms = 1_000_000 + number
        for batch in (
            batch_of(b"plain-%d" % number, timestamp=now_ms),
            batch_of(
                b"a",
                b"b",
                timestamp=now_ms,
                producer_id=_PRODUCER,
                epoch=0,
                sequence=2 * number,
                transactional=True,
            ),
        ):
            log.append(log.check(batch, now_ms))
        log.append_marker(TransactionMarker(_PRODUCER, 0, 0, commit=number % 2 == 1), now_ms)
        await log.durable(log.log_end_offset)


async def _make(path: Path, *, killed: bool) -> None:
    for first in (0, ROUNDS // 2):
        values = {**SETTINGS, "log.dirs": str(path)}
        loaded = load([Given(name, value, "test") for name, value in values.items()])
        broker = Broker(loaded.config, on_failure=lambda failure: None)
        await broker.start()
        if not first:
            broker.topics.create("orders", configs=TOPIC)
            broker.topics.create("others")
        await write(broker.topics.partition("orders", 0), first, first + ROUNDS // 2)
        await write(broker.topics.partition("others", 0), first, first + ROUNDS // 2)
        if killed and first:
            await crash(broker)
        else:
            await broker.stop()


def make(path: Path, *, killed: bool = False) -> None:
    """Make the data directory of a broker that was stopped, or killed, after two starts."""
    asyncio.run(_make(path, killed=killed))


class Damage(NamedTuple):
    """One way to damage a directory, and what a check says of it."""

    name: str
    perform: Callable[[Path], object]
    severity: str
    #: The end of the path that is named.
    path: str
    remedy: str


def logs(path: Path) -> list[Path]:
    """The segments of the partition that is damaged, in order."""
    return sorted((path / "orders-0").glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def _set(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - size)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _lose_segment(path: Path, number: int) -> None:
    for each in (path / "orders-0").glob(f"{logs(path)[number].stem}.*"):
        if each.suffix != ".snapshot":
            each.unlink()


def _offsets(path: Path, name: str, key: tuple[str, int], offset: int) -> None:
    offsets = decode_offsets((path / name).read_bytes())
    (path / name).write_bytes(encode_offsets({**offsets, key: offset}))


def _spoil_catalog(path: Path) -> None:
    with closing(sqlite3.connect(path / "catalog.sqlite")) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    _set(path / "catalog.sqlite", 4096, b"\xff" * 3000)


def _take_aborted(path: Path) -> Path:
    return next(iter(sorted((path / "orders-0").glob("*.txnindex"))))


_LOG, _INDEX, _TIMES = "log", "index", "timeindex"
_EPOCHS = "leader-epoch-checkpoint"
_POINTS = "recovery-point-offset-checkpoint"
_STARTS = "log-start-offset-checkpoint"


def _beside(number: int, suffix: str) -> Callable[[Path], Path]:
    return lambda path: logs(path)[number].with_suffix(f".{suffix}")


def _small(name: str) -> Callable[[Path], Path]:
    return lambda path: path / "orders-0" / name


def _copied(path: Path, source: str, target: str) -> None:
    directory = path / "orders-0"
    first = sorted(directory.glob(source))[-1]
    shutil.copy(first, directory / target)


DAMAGES = [
    Damage("a bit of a batch", lambda p: flip(logs(p)[0], 80), "error", ".log", "keep_whole"),
    Damage("a length", lambda p: _set(logs(p)[1], 8, b"\x7f"), "error", ".log", "keep_whole"),
    Damage(
        "a length of 0", lambda p: _set(logs(p)[1], 8, b"\0" * 4), "error", ".log", "keep_whole"
    ),
    Damage("the magic", lambda p: flip(logs(p)[0], 16), "error", ".log", "keep_whole"),
    Damage("a base offset", lambda p: flip(logs(p)[1], 7), "error", ".log", "keep_whole"),
    Damage("zeros", lambda p: _set(logs(p)[-1], 0, bytes(90)), "error", ".log", "keep_whole"),
    Damage("a sector", lambda p: _set(logs(p)[1], 100, b"x" * 200), "error", ".log", "keep_whole"),
    Damage("a lost tail", lambda p: _cut(logs(p)[-1], 5), "error", ".log", "keep_whole"),
    Damage("a cut segment", lambda p: _cut(logs(p)[1], 90), "error", ".log", "keep_whole"),
    Damage("garbage", lambda p: _append(logs(p)[-1], b"junk" * 30), "error", ".log", "keep_whole"),
    Damage("a lost segment", lambda p: _lose_segment(p, 1), "error", ".log", "keep_whole"),
    Damage("the first one", lambda p: _lose_segment(p, 0), "error", _EPOCHS, "epochs"),
    Damage("the last one", lambda p: _lose_segment(p, -1), "error", _POINTS, "offsets"),
    Damage(
        "an index entry", lambda p: flip(_beside(0, _INDEX)(p), 7), "warning", ".index", "index"
    ),
    Damage("an offset", lambda p: flip(_beside(0, _INDEX)(p), 3), "warning", ".index", "index"),
    Damage(
        "the active index", lambda p: flip(_beside(-1, _INDEX)(p), 7), "warning", ".index", "index"
    ),
    Damage(
        "a stale entry",
        lambda p: _append(_beside(0, _INDEX)(p), b"\0\0\0\1" * 2),
        "warning",
        ".index",
        "index",
    ),
    Damage("no index", lambda p: _beside(0, _INDEX)(p).unlink(), "warning", ".index", "index"),
    Damage("a time", lambda p: flip(_beside(0, _TIMES)(p), 7), "warning", ".timeindex", "index"),
    Damage("no times", lambda p: _beside(1, _TIMES)(p).unlink(), "warning", ".timeindex", "index"),
    Damage("an abort", lambda p: _cut(_take_aborted(p), 34), "warning", ".txnindex", "aborted"),
    Damage("half an abort", lambda p: _cut(_take_aborted(p), 3), "warning", ".txnindex", "aborted"),
    Damage("no aborts", lambda p: _take_aborted(p).unlink(), "warning", ".txnindex", "aborted"),
    Damage(
        "another abort",
        lambda p: flip(_take_aborted(p), 9),
        "warning",
        ".txnindex",
        "aborted",
    ),
    Damage(
        "a snapshot", lambda p: flip(_beside(1, "snapshot")(p), 30), "warning", ".snapshot", "drop"
    ),
    Damage(
        "a snapshot of ours",
        lambda p: flip(max((p / "orders-0").glob("*.state")), 30),
        "warning",
        ".state",
        "drop",
    ),
    Damage(
        "a snapshot behind the end",
        lambda p: _copied(p, "*.snapshot", f"{9999:020d}.snapshot"),
        "warning",
        ".snapshot",
        "drop",
    ),
    Damage(
        "a snapshot that tells more",
        lambda p: _copied(p, "*.snapshot", logs(p)[1].with_suffix(".snapshot").name),
        "warning",
        ".snapshot",
        "drop",
    ),
    Damage(
        "a snapshot by another's name",
        lambda p: _copied(p, "*.state", f"{4:020d}.state"),
        "warning",
        ".state",
        "drop",
    ),
    Damage("torn epochs", lambda p: _cut(_small(_EPOCHS)(p), 2), "warning", _EPOCHS, "epochs"),
    Damage("no epochs", lambda p: _small(_EPOCHS)(p).unlink(), "warning", _EPOCHS, "epochs"),
    Damage(
        "wrong epochs",
        lambda p: _small(_EPOCHS)(p).write_bytes(b"0\n1\n5 0\n"),
        "warning",
        _EPOCHS,
        "epochs",
    ),
    Damage(
        "a torn topic id",
        lambda p: _small("partition.metadata")(p).write_bytes(b"version: 0\nto"),
        "warning",
        "partition.metadata",
        "metadata",
    ),
    Damage(
        "no topic id",
        lambda p: _small("partition.metadata")(p).unlink(),
        "note",
        "partition.metadata",
        "metadata",
    ),
    Damage(
        "another topic id",
        lambda p: shutil.copy(p / "others-0" / "partition.metadata", p / "orders-0"),
        "error",
        "orders-0",
        "stray",
    ),
    Damage(
        "a partition too many",
        lambda p: shutil.copytree(p / "orders-0", p / "orders-5"),
        "warning",
        "orders-5",
        "stray",
    ),
    Damage("a lost log", lambda p: shutil.rmtree(p / "orders-0"), "error", _POINTS, "offsets"),
    Damage(
        "closed logs", lambda p: flip(p / ".magnetar-closed-logs", 20), "warning", "-logs", "drop"
    ),
    Damage("the closed sizes", lambda p: _lose_segment(p, 0), "warning", "-logs", "drop"),
    Damage("torn points", lambda p: _cut(p / _POINTS, 2), "warning", _POINTS, "offsets"),
    Damage(
        "a point too far",
        lambda p: _offsets(p, _POINTS, ("orders", 0), 999),
        "error",
        _POINTS,
        "offsets",
    ),
    Damage("torn starts", lambda p: _append(p / _STARTS, b"x"), "error", _STARTS, "offsets"),
    Damage(
        "a start too far",
        lambda p: _offsets(p, _STARTS, ("orders", 0), 999),
        "error",
        _STARTS,
        "offsets",
    ),
    Damage("the catalog", _spoil_catalog, "error", "catalog.sqlite", "catalog"),
]
