"""The metrics of several nodes at one endpoint: each sample gets the label `node`.

The first node has the endpoint. Each other node has a socket in its directory, which its owner
alone may use, and writes its metrics there to each connection. A line has some samples of a family,
in JSON, since Prometheus' text takes five times as long to be written and read. A last line says
that they are whole: a node that is killed while it writes must not lose some of them. A node that
is away, or does not answer in time, is left out of the scrape.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from logstore.disk.pools import HOUSEKEEPING
from magnetar.logging import get_logger

if TYPE_CHECKING:
    from prometheus_client.core import Metric


#: Returns every metric as it is now; runs on the event loop.
Gather = Callable[[], Coroutine[Any, Any, "list[Metric]"]]
#: How long a node has for its metrics.
ANSWER_SECONDS = 2.0
_LABEL = "node"
_CHUNK_BYTES = 1 << 16
#: So many samples are encoded in one step of the interpreter: a millisecond, in which no other
#: thread goes on.
_SAMPLES_IN_LINE = 500
#: The last line of a node's answer.
_END = b"end\n"

_log = get_logger("metrics")


class Collector(Protocol):
    """What prometheus-client collects from."""

    def collect(self) -> Iterable[Metric]:
        """Return metrics as they are now."""
        ...


async def serve(listening: socket.socket, gather: Gather) -> asyncio.AbstractServer:
    """Write what `gather` returns to each connection, until the server is closed."""
    return await asyncio.start_unix_server(partial(_answer, gather), sock=listening)


async def _answer(gather: Gather, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    families = await gather()
    try:
        # In a thread: ten thousand partitions take 0.1 s.
        writer.write(await HOUSEKEEPING.run(partial(_encode, families)))
        await writer.drain()
    except ConnectionError:
        _log.debug("metrics not taken", reason="the endpoint's node has gone")
    finally:
        writer.close()


def _encode(families: list[Metric]) -> bytes:
    """Return the families, and those of this process."""
    # Imported at the first scrape, as the gathering itself.
    from prometheus_client import ProcessCollector

    lines = []
    for family in chain(let_go(families), ProcessCollector(registry=None).collect()):
        for first in range(0, len(family.samples), _SAMPLES_IN_LINE):
            samples = [each[:3] for each in family.samples[first : first + _SAMPLES_IN_LINE]]
            line = (family.name, family.documentation, family.type, samples)
            lines.append(json.dumps(line).encode() + b"\n")
    return b"".join(lines) + _END


def _decode(lines: Iterable[bytes]) -> Iterator[Metric]:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    for line in lines:
        name, documentation, kind, samples = json.loads(line)
        family = Metric(name, documentation, kind)
        family.samples = [Sample(*each) for each in samples]
        yield family


def let_go(families: list[Metric]) -> Iterator[Metric]:
    """Yield the families, and empty the list of them.

    The caller may forget each one before the next: to free all those of ten thousand partitions in
    one step holds all threads, that of the event loop too, for 20 ms.
    """
    families.reverse()
    while families:
        yield families.pop()


class NodesCollector:
    """The metrics of the endpoint's own node, and of all others."""

    def __init__(
        self,
        own_id: int,
        own: Iterable[Collector],
        connect: Mapping[int, Callable[[], socket.socket]],
    ) -> None:
        """`connect`: how each other node is reached."""
        self._own_id = own_id
        self._own = own
        self._connect = connect

    def collect(self) -> Iterator[Metric]:
        """Return each metric once, with the samples of every node."""
        merged: dict[str, Metric] = {}
        own = (family for each in self._own for family in each.collect())
        _merge(merged, self._own_id, own)
        for node_id, connect in self._connect.items():
            try:
                _merge(merged, node_id, _read(connect))
            except OSError as error:
                _log.warning("metrics of a node are missing", node_id=node_id, reason=str(error))
        families = [*merged.values()]
        merged.clear()
        yield from let_go(families)


def _read(connect: Callable[[], socket.socket]) -> Iterator[Metric]:
    with connect() as connected:
        connected.settimeout(ANSWER_SECONDS)
        lines = b"".join(iter(lambda: connected.recv(_CHUNK_BYTES), b"")).splitlines(keepends=True)
    if lines[-1:] != [_END]:
        raise ConnectionError("the node ended while it answered")
    return _decode(lines[:-1])


def _merge(merged: dict[str, Metric], node_id: int, families: Iterable[Metric]) -> None:
    for family in families:
        samples = [
            sample._replace(labels={**sample.labels, _LABEL: str(node_id)})
            for sample in family.samples
        ]
        if (known := merged.get(family.name)) is None:
            family.samples = samples
            merged[family.name] = family
        else:
            known.samples += samples
