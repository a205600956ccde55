"""Tell the histories of many seeds, each in a process of its own, and print those that go wrong.

    python -m tests.simulation.run --seeds 0-999 --processes 2
    python -m tests.simulation.run --seeds 17 --plant fence-removed

Every process has the same hash seed and the same state at its beginning, so a seed is the same
history in every run, alone or among others. The exit code is 1 where a history went wrong, and 2
where the simulation, its checker or a plant did.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import select
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
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
    seed: int
    began_s: float
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
    waiting = iter(seeds)
    running: dict[int, _Running] = {}
    try:
        while True:
            while len(running) < processes and (seed := next(waiting, None)) is not None:
                reading, one = _begin(seed, plant, histories, family)
                running[reading] = one
            if not running:
                return
            yield from _gather(running)
    finally:
        for reading, one in running.items():
            os.kill(one.process_id, 9)
            _end(reading, one)


def _begin(seed: int, plant: str, histories: ModuleType, family: str) -> tuple[int, _Running]:
    reading, writing = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.close(reading)
        _tell_one(seed, plant, writing, histories, family)
    os.close(writing)
    return reading, _Running(process_id, seed, time.monotonic())


def _tell_one(seed: int, plant: str, writing: int, histories: ModuleType, family: str) -> None:
    """Tell one history and end the process, without the ceremony that would run what is left."""
    # What the end of a process would clean up is what a dead broker has left.
    gc.disable()
    try:
        options = {"family": family} if family and family not in _MODULES else {}
        verdict = histories.tell(seed, plant, **options)
        told = Told(seed, verdict.witnesses, verdict.trace_hash, verdict.extent)
    except BaseException:
        # A fault that cannot be planted, or a mistake of the simulation: no verdict, but a reason.
        told = Told(seed, [f"no verdict: {traceback.format_exc()}"], is_broken=True)
    try:
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(told, pipe)
    finally:
        os._exit(0)


def _gather(running: dict[int, _Running]) -> Iterator[Told]:
    for reading in select.select(list(running), [], [], 1.0)[0]:
        one = running[reading]
        data = os.read(reading, 1 << 16)
        one.said += data
        if not data:
            del running[reading]
            _end(reading, one)
            if one.said:
                told = pickle.loads(one.said)
                assert isinstance(told, Told)
                yield told
            else:
                yield Told(one.seed, ["stuck: the process ended without a verdict"])
    for reading, one in list(running.items()):
        waited_s = time.monotonic() - one.began_s
        if _used_s(one.process_id) > SECONDS_MAX or waited_s > _WAITING_MAX_S:
            os.kill(one.process_id, 9)
            del running[reading]
            _end(reading, one)
            yield Told(one.seed, [f"stuck: no verdict after {waited_s:.0f} s"])


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
