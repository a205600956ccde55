"""`python -m tools.fuzz [TARGET ...]`: random inputs for a given time. `make fuzz` runs it.

    python -m tools.fuzz --minutes 60            every target, in turns
    python -m tools.fuzz journal --seed 17       one input again
    python -m tools.fuzz journal --file PATH     one input of the corpus again

A fault is printed with its seed, and its input is kept in the corpus. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import sys
import time
from hashlib import sha256
from pathlib import Path
from random import Random, SystemRandom

from tools.fuzz.running import CORPUS, Found, Run, perform, run_corpus, run_seeds
from tools.fuzz.target import Target
from tools.fuzz.targets import TARGETS

#: One turn of a target. Its seeds are fresh each time.
_TURN_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make fuzz",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--minutes", type=float, default=1.0)
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--seed", type=int)
    again.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target is called {', '.join(sorted(unknown))}")
    targets = [TARGETS[name] for name in arguments.targets or TARGETS]
    try:
        if arguments.seed is not None:
            for target in targets:
                perform(target, target.generate(Random(arguments.seed)), f"--seed {arguments.seed}")
        elif arguments.file is not None:
            for target in targets:
                perform(target, arguments.file.read_bytes(), str(arguments.file))
        else:
            return _run_in_turns(targets, arguments.minutes * 60)
    except Found as found:
        print(found)
        return 1
    return 0


class _Faults:
    """The faults of a run, each kept once."""

    def __init__(self) -> None:
        self._keys: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, found: Found) -> None:
        """Print a fault that is new, and keep its input in the corpus."""
        if found.key in self._keys:
            return
        self._keys.add(found.key)
        path = CORPUS / found.target.name / sha256(found.given).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found.given)
        print(f"{found}kept as {path}", flush=True)


def _run_in_turns(targets: list[Target], seconds: float) -> int:
    ends_s = time.monotonic() + seconds
    turn_s = min(_TURN_S, seconds / len(targets))
    runs: dict[str, list[Run]] = {target.name: [] for target in targets}
    faults = _Faults()
    for target in targets:
        run_corpus(target)
    while (left_s := ends_s - time.monotonic()) > 0:
        for target in targets:
            seed = SystemRandom().getrandbits(40)
            runs[target.name].append(run_seeds(target, seed, min(turn_s, left_s), faults.add))
    for name, of_target in runs.items():
        _print_runs(name, of_target)
    return int(bool(faults))


def _print_runs(name: str, runs: list[Run]) -> None:
    inputs = sum(run.inputs for run in runs)
    took_s = sum(run.took_s for run in runs)
    slowest_ms = max((run.slowest_s for run in runs), default=0) * 1000
    rate = inputs / took_s if took_s else 0
    print(f"{name:15s} {inputs:9d} inputs {rate:8.0f} /s, slowest {slowest_ms:6.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
