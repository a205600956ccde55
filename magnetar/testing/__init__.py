"""A broker for tests: a process of its own, ready in a fraction of a second, gone afterwards.

    from magnetar.testing import start_broker

    def test_my_service():
        with start_broker(settings={"num.partitions": "4"}) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            broker.kill()  # as a crash would
            broker.start()  # on the same port and data

Data is in a temporary directory, unless one is named: `start_broker(tmp_path)`.

With pytest: `pytest_plugins = ["magnetar.testing.fixtures"]` in conftest.py gives every test that
asks for `magnetar_broker` one that the test session shares; a session fixture of your own called
`magnetar_settings` gives it settings.
"""

from magnetar.testing.process import BrokerProcess, NotReady, start_broker

__all__ = ["BrokerProcess", "NotReady", "start_broker"]
