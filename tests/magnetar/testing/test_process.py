"""What users' tests start: brokers with and without a directory, and the pytest fixture."""

from __future__ import annotations

import pytest

from magnetar.testing import NotReady, start_broker

pytest_plugins = ["pytester"]


def test_without_a_directory_the_data_goes_with_the_broker() -> None:
    with start_broker() as broker:
        assert broker.data_dir.is_dir()
        broker.kill()
        broker.start()
    assert not broker.data_dir.exists()


def test_a_broker_that_cannot_start_says_why() -> None:
    broker = start_broker(settings={"num.partitions": "x"})
    with pytest.raises(NotReady, match=r"num\.partitions=x is not a whole number"), broker:
        pass
    assert not broker.data_dir.exists()


CONFTEST = """
import pytest

pytest_plugins = ["magnetar.testing.fixtures"]

@pytest.fixture(scope="session")
def magnetar_settings():
    return {"num.partitions": "3"}
"""
TEST = """
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

def test_a_service(magnetar_broker):
    address = {"bootstrap.servers": magnetar_broker.bootstrap_servers}
    producer = Producer(address)
    producer.produce("orders", b"first")
    assert producer.flush(10) == 0
    assert len(AdminClient(address).list_topics("orders").topics["orders"].partitions) == 3
"""


def test_the_fixture_gives_a_broker_with_ones_own_settings(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    outcome = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:randomly")
    outcome.assert_outcomes(passed=1)
