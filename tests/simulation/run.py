"""Tell the histories of many seeds, in processes of their own, and print those that go wrong.

    python -m tests.simulation.run --seeds 0-999 --processes 2
    python -m tests.simulation.run --seeds 17 --plant fence-removed

Every process has the same hash seed and the same state at its beginning, and tells a few histories.
What one of them leaves behind is never touched again. So a seed is the same history in every run,
alone or among others. The exit code is 1 where a history went wrong, and 2
where the simulation, its checker or a plant did.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import select
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

HASH_SEED = "0"
NODES, CLUSTER = "nodes", "cluster"
#: Families whose histories have a module of their own.
_MODULES = {NODES: "nodes_history", CLUSTER: "cluster_history"}
#: What is special about the histories of a family.
FAMILIES = {
    NODES: "histories of several nodes",
    CLUSTER: "histories of a cluster whose partitions move",
    "ailing": "the disk fills, fails and rots",
    "secured": "clients log in and need rights, and some try to get in",
}
#: A history that uses more of a processor is ended, and told as stuck; so is one that waits.
SECONDS_MAX = 60.0
_WAITING_MAX_S = 900.0
#: A process tells no more: all of them stay in its memory, some 10 to 40 MB each.
_HISTORIES_OF_A_PROCESS = 8
#: Each verdict has its size before it.
_SIZE = struct.Struct(">I")


def main() -> int:
    """Run the command line; return the exit code."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings have an order of their own in every process, unless they are told.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])
    options = _options()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    began_s = time.monotonic()
    wrong = 0
    count = 0
    for told in tell_all(seeds, options.plant, options.processes, options.family):
        count += 1
        if told.is_broken:
            print(f"seed {told.seed}:", *told.witnesses)
            return 2
        if told.witnesses:
            wrong += 1
            print(f"seed {told.seed}: {len(told.witnesses)} witnesses", *told.witnesses[:12])
            plant = f" --plant {options.plant}" if options.plant else ""
            plant += f" --{options.family}" if options.family else ""
            print(f"    again: python -m tests.simulation.run --seeds {told.seed}{plant}")
            if options.until_found:
                break
        if options.verbose:
            print(told)
    took_s = time.monotonic() - began_s
    print(f"{count} histories, {wrong} with witnesses, {1000 * took_s / max(count, 1):.0f} ms each")
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", required=True, help="A, or A-B with both ends")
    parser.add_argument("--processes", type=int, default=1, help="how many run at once")
    parser.add_argument("--plant", default="", help="a fault to plant: a name of planted_faults.py")
    families = parser.add_mutually_exclusive_group()
    for family, described in FAMILIES.items():
        families.add_argument(
            f"--{family}", dest="family", action="store_const", const=family, help=described
        )
    parser.add_argument("--until-found", action="store_true", help="end at the first witness")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    parser.set_defaults(family="")
    return parser.parse_args()


@dataclass
class Told:
    """What a process said of its history."""

    seed: int
    witnesses: list[str]
    trace_hash: str = ""
    #: Acknowledged records, committed transactions, fetches, brokers: that there was a history.
    extent: tuple[int, ...] = ()
    #: The simulation, its checker or a plant is wrong, not the broker: no witness counts.
    is_broken: bool = False


@dataclass
class _Running:
    process_id: int
    #: Those that it has not told yet. It is at the first.
    seeds: deque[int]
    began_s: float = field(default_factory=time.monotonic)
    #: What the process had used of a processor when the first one began.
    used_s: float = 0.0
    said: bytes = b""


def tell_all(seeds: range, plant: str, processes: int, family: str = "") -> Iterator[Told]:
    """Yield what came of each seed, as soon as it is known.

    `family`: one of FAMILIES; empty for ordinary histories of one broker.
    """
    # Imported and compiled once: every process begins as a copy of this one.
    name = _MODULES.get(family, "whole_history")
    histories = import_module(f"tests.simulation.{name}")
    histories.warm_up()
    gc.freeze()
    # A few for each process at least, so that none of them is idle for long at the end.
    size = max(1, min(_HISTORIES_OF_A_PROCESS, len(seeds) // (4 * processes)))
    waiting = deque(seeds[start : start + size] for start in range(0, len(seeds), size))
    running: dict[int, _Running] = {}
    try:
        while waiting or running:
            while len(running) < processes and waiting:
                reading, one = _begin(waiting.popleft(), plant, histories, family)
                running[reading] = one
            for told, untold in _gather(running):
                if untold:
                    waiting.appendleft(untold)
                yield told
    finally:
        for reading, one in running.items():
            os.kill(one.process_id, 9)
            _end(reading, one)


def _begin(seeds: range, plant: str, histories: ModuleType, family: str) -> tuple[int, _Running]:
    reading, writing = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(reading)
        _tell_some(seeds, plant, writing, histories, family)
    os.close(writing)
    return reading, _Running(process_id, deque(seeds))


def _tell_some(seeds: range, plant: str, writing: int, histories: ModuleType, family: str) -> None:
    """Tell histories and end the process, without the ceremony that would run what is left."""
    # What a collection, or the end of a process, would clean up is what a dead broker has left.
    gc.disable()
    options = {"family": family} if family and family not in _MODULES else {}
    try:
        with os.fdopen(writing, "wb") as pipe:
            for seed in seeds:
                try:
                    verdict = histories.tell(seed, plant, **options)
                    told = Told(seed, verdict.witnesses, verdict.trace_hash, verdict.extent)
                except BaseException:
                    # A fault that cannot be planted, or a mistake of the simulation: no verdict,
                    # but a reason.
                    reason = f"no verdict: {traceback.format_exc()}"
                    told = Told(seed, [reason], is_broken=True)
                said = pickle.dumps(told)
                pipe.write(_SIZE.pack(len(said)) + said)
                pipe.flush()
    finally:
        os._exit(0)


def _gather(running: dict[int, _Running]) -> Iterator[tuple[Told, range]]:
    """Yield what was told, and the seeds that are to be told by another process in its place."""
    for reading in select.select(list(running), [], [], 1.0)[0]:
        one = running[reading]
        if data := os.read(reading, 1 << 16):
            one.said += data
            yield from ((told, range(0)) for told in _told(one))
        else:
            del running[reading]
            yield from _ended(reading, one, "the process ended without a verdict")
    for reading, one in list(running.items()):
        waited_s = time.monotonic() - one.began_s
        if _used_s(one.process_id) - one.used_s > SECONDS_MAX or waited_s > _WAITING_MAX_S:
            os.kill(one.process_id, 9)
            del running[reading]
            yield from _ended(reading, one, f"no verdict after {waited_s:.0f} s")


def _told(one: _Running) -> Iterator[Told]:
    """Take the whole verdicts from what a process has said."""
    while len(one.said) >= _SIZE.size:
        end = _SIZE.size + _SIZE.unpack_from(one.said)[0]
        if len(one.said) < end:
            return
        told = pickle.loads(one.said[_SIZE.size : end])
        assert isinstance(told, Told)
        one.said = one.said[end:]
        one.seeds.popleft()
        one.began_s, one.used_s = time.monotonic(), _used_s(one.process_id)
        yield told


def _ended(reading: int, one: _Running, reason: str) -> Iterator[tuple[Told, range]]:
    """The process is no more: yield the history that it was at, where there was one."""
    _end(reading, one)
    if one.seeds:
        first, last = one.seeds[0], one.seeds[-1]
        yield Told(first, [f"stuck: {reason}"]), range(first + 1, last + 1)


def _used_s(process_id: int) -> float:
    """Return the processor time of a process: the machine may be busy with others."""
    stat = Path(f"/proc/{process_id}/stat").read_text()
    # The second field, the command in parentheses, may hold spaces; the 14th and 15th are ticks.
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _end(reading: int, one: _Running) -> None:
    os.close(reading)
    os.waitpid(one.process_id, 0)


if __name__ == "__main__":
    sys.exit(main())
