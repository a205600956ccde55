"""A broker for tests: a process of its own, ready in a fraction of a second, gone afterwards.

    from magnetar.testing import start_broker

    def test_my_service(tmp_path):
        with start_broker(tmp_path) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest: `pytest_plugins = ["magnetar.testing.fixtures"]` in conftest.py gives every test that
asks for `magnetar_broker` one that the test session shares.
"""

from magnetar.testing.process import BrokerProcess, NotReady, start_broker

__all__ = ["BrokerProcess", "NotReady", "start_broker"]
