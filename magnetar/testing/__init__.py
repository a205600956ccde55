"""A broker for tests: a process of its own that is ready in a fraction of a second.

    from magnetar.testing import start_broker

    def test_my_service():
        with start_broker(settings={"num.partitions": "4"}) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            broker.kill()  # as a crash would
            broker.start()  # on the same port and data

The data is in a temporary directory, unless you name one: `start_broker(tmp_path)`.

TLS, users and ACLs are an argument each:

    acls = [allow("ada", "READ", "WRITE", topic="orders"), allow("ada", "READ", group="billing")]
    with start_broker(tls=True, users={"ada": "secret"}, acls=acls) as broker:
        Producer(broker.confluent_settings("ada"))
        KafkaProducer(**broker.kafka_python_settings("ada"))
        broker.client_settings("ada")  # of Java's clients; properties_file() has them in a file

A cluster of three nodes: `start_broker(workers=3)`.

Certificates need `pip install magnetar[security]`. Users log in by PLAIN, or by
`mechanism="SCRAM-SHA-512"`.

With pytest: put `pytest_plugins = ["magnetar.testing.fixtures"]` into conftest.py. All tests with
an argument `magnetar_broker` then share one broker. A session fixture of your own,
`magnetar_settings`, returns its settings.

This package knows a broker by its process and its protocol: it runs `magnetar serve`, waits for the
line that says "ready on HOST:PORT", and stops the broker with SIGTERM.
"""

from magnetar.testing.access import allow, deny
from magnetar.testing.process import BrokerProcess, NotReady, start_broker

__all__ = ["BrokerProcess", "NotReady", "allow", "deny", "start_broker"]
