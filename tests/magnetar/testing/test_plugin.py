"""The pytest plugin, in projects of its own: what a project gets that has magnetar installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

seen = []

def send(broker, topic):
    producer = Producer({**broker.confluent_settings(), "log_level": 0})
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0

def test_the_fixture_is_a_broker_with_the_projects_settings(kafka):
    seen.append((kafka.port, kafka.topic()))
    send(kafka, "made-by-use")
    topics = AdminClient(kafka.confluent_settings()).list_topics("made-by-use").topics
    assert len(topics["made-by-use"].partitions) == 3
    kafka.kill()

def test_the_next_test_has_the_same_broker_and_a_topic_of_its_own(kafka):
    ((port, topic),) = seen
    assert kafka.port == port and kafka.is_running
    mine = kafka.topic()
    assert mine != topic
    assert mine.startswith("test_the_next_test_has_the_same_broker")
    send(kafka, mine)

@pytest.mark.magnetar(settings={"num.partitions": "5"})
def test_a_marker_gives_a_broker_of_its_own(kafka):
    assert kafka.port != seen[0][0]
    send(kafka, "made-by-use")
    topics = AdminClient(kafka.confluent_settings()).list_topics("made-by-use").topics
    assert len(topics["made-by-use"].partitions) == 5

@pytest.mark.parametrize("name", ["a b/c"])
def test_names_of_tests_may_be_any(kafka, name):
    send(kafka, kafka.topic())

def test_a_fault_does_not_happen(kafka):
    kafka.lose_answer("EndTxn", transactional_id="x")

def test_a_test_that_fails_is_told_that_alone(kafka):
    kafka.lose_answer("EndTxn")
    assert False, "the mistake"

@pytest.mark.magnetar({"num.partitions": "5"})
def test_a_marker_with_the_wrong_shape(kafka):
    pass
"""
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def magnetar_settings():
    return {"num.partitions": "3"}
"""


def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the project find the plugin by the entry point that pyproject.toml declares."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        ((name, place),) = tomllib.load(file)["project"]["entry-points"]["pytest11"].items()
    facts = pytester.mkdir("installed") / "project-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: project\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[pytest11]\n{name} = {place}\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{facts.parent}")


def test_a_project_needs_no_more_than_the_fixture(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(pytester, monkeypatch)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    plugins = ("-p", "no:asyncio", "-p", "no:randomly", "--strict-markers")
    outcome = pytester.runpytest_subprocess(*plugins)
    outcome.assert_outcomes(passed=5, failed=1, errors=2)
    outcome.stdout.fnmatch_lines(
        [
            "*FaultNeverFired: lose_answer EndTxn transactional_id=x: never fired, so this test*",
            "*ERROR*test_a_fault_does_not_happen*",
        ]
    )
    outcome.stdout.fnmatch_lines(["*TypeError: @pytest.mark.magnetar takes names*"])
    assert "ERROR at teardown of test_a_test_that_fails" not in outcome.stdout.str()


OF_UNITTEST = """
import unittest
import pytest

class Transfers(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def broker(self, kafka):
        kafka.lose_answer("EndTxn")

    def test_fails(self):
        self.fail("the mistake")

    def test_is_skipped(self):
        self.skipTest("not here")

    @unittest.expectedFailure
    def test_is_to_fail(self):
        self.fail("as expected")

    def test_passes(self):
        pass
"""


def test_a_test_of_unittest_is_told_of_its_own_failure_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(pytester, monkeypatch)
    pytester.makepyfile(OF_UNITTEST)
    outcome = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:randomly")
    outcome.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*ERROR at teardown of Transfers.test_passes*"])


def test_a_project_that_uses_no_broker_pays_nothing() -> None:
    script = (
        "import sys; before = set(sys.modules); import magnetar.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", f"import pytest; {script}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert loaded == ["magnetar", "magnetar.testing", "magnetar.testing.plugin"]


def test_every_public_name_is_there_and_no_other() -> None:
    import magnetar.testing

    for name in magnetar.testing.__all__:
        assert getattr(magnetar.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        magnetar.testing.nothing  # noqa: B018  # as meant
