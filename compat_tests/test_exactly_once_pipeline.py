"""The main job: three clients count words in one group, exactly once, while everything is
killed.
"""

from __future__ import annotations

import pytest

from compat_tests.brokers import Broker
from compat_tests.pipeline.run import Plan, Unfinished, run_pipeline


def test_words_are_counted_exactly_once_whoever_is_killed(own_broker: Broker) -> None:
    story: list[str] = []
    try:
        verdict, killed = run_pipeline(own_broker, Plan(words_max=400_000), story.append)
    except Unfinished as error:
        pytest.fail("\n".join((str(error), *story[-30:], own_broker.output())), pytrace=False)
    assert not verdict.faults, "\n".join((killed, *verdict.faults, *story))
    assert verdict.words >= 400_000
    assert "broker" in killed
