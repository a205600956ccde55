"""Every target of `tools.fuzz`: its corpus, and the same few inputs each time."""

from __future__ import annotations

from random import Random

import pytest

from tools.fuzz.running import CORPUS, Found, corpus_of, perform, run_corpus
from tools.fuzz.target import Target, judge
from tools.fuzz.targets import TARGETS

#: How many inputs take about three seconds.
_INPUTS = {
    "requests": 60,
    "messages": 2_000,
    "batches": 800,
    "journal": 400,
    "files": 6_000,
    "stored_records": 2_000,
    "texts": 1_500,
    "logins": 8_000,
    "peers": 1_500,
    "tokens": 3_000,
}


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_a_fault(name: str) -> None:
    target = TARGETS[name]
    run_corpus(target)
    for seed in range(_INPUTS[name]):
        perform(target, target.generate(Random(seed)), f"--seed {seed}")


def test_every_input_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert any(map(corpus_of, TARGETS.values()))


def test_a_fault_is_told_with_what_makes_it_again() -> None:
    def run(given: bytes) -> None:
        judge(given != b"bad", "no input is bad")

    broken = Target("broken", lambda random: b"bad", run)
    with pytest.raises(Found, match=r"broken --seed 3(.|\n)*no input is bad") as found:
        perform(broken, broken.generate(Random(3)), "--seed 3")
    assert found.value.given == b"bad"


def test_equal_seeds_make_equal_inputs() -> None:
    for target in TARGETS.values():
        assert target.generate(Random(5)) == target.generate(Random(5))
