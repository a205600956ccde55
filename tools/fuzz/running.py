"""Runs of targets: inputs by seed, the corpus, and what is told of a fault."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.fuzz.target import Fault, Target

CORPUS = Path(__file__).resolve().parent / "corpus"


class Run(NamedTuple):
    """What one target was put through."""

    inputs: int
    took_s: float
    slowest_s: float


class Found(Exception):
    """An input that a target treats wrongly, and how to run it again."""

    def __init__(self, target: Target, place: str, given: bytes, error: Exception) -> None:
        told = "".join(traceback.format_exception(error))
        super().__init__(f"{target.name} {place}: {len(given)} bytes\n{told}")
        self.target = target
        self.given = given
        *_, raised_at = traceback.extract_tb(error.__traceback__)
        promise = str(error).split(",")[0] if isinstance(error, Fault) else ""
        #: The same for inputs that find the same fault, as far as can be told.
        self.key = (target.name, type(error), raised_at.filename, raised_at.lineno, promise)


def _raised(found: Found) -> None:
    raise found


def inputs_of(target: Target, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield seeds, counting up, each with its input."""
    while True:
        yield seed, target.generate(Random(seed))
        seed += 1


def corpus_of(target: Target) -> list[Path]:
    """Return the files of a target's corpus."""
    return sorted((CORPUS / target.name).glob("*"))


def run_corpus(target: Target) -> int:
    """Run every input of the corpus; return how many. Raises Found."""
    paths = corpus_of(target)
    for path in paths:
        perform(target, path.read_bytes(), str(path))
    return len(paths)


def run_seeds(
    target: Target, seed: int, seconds: float, on_found: Callable[[Found], None] = _raised
) -> Run:
    """Run the inputs of `seed` and the ones after it for so long."""
    began_s = now_s = time.monotonic()
    slowest_s = 0.0
    count = 0
    for number, given in inputs_of(target, seed):
        try:
            slowest_s = max(slowest_s, perform(target, given, f"--seed {number}"))
        except Found as found:
            on_found(found)
        count += 1
        now_s = time.monotonic()
        if now_s - began_s >= seconds:
            break
    return Run(count, now_s - began_s, slowest_s)


def perform(target: Target, given: bytes, place: str) -> float:
    """Run one input; return its CPU time. Raises Found."""
    try:
        took_s = _timed(target, given)
        if took_s > target.run_s_max:
            # Once more: this time may have paid for an import, or a collection of garbage.
            took_s = _timed(target, given)
        if took_s > target.run_s_max:
            raise Fault(f"took {took_s:.3f} s of CPU time, at most {target.run_s_max}")
    except Exception as error:  # whatever a target raises is a fault
        raise Found(target, place, given, error) from error
    return took_s


def _timed(target: Target, given: bytes) -> float:
    began_s = time.thread_time()
    target.run(given)
    return time.thread_time() - began_s
