"""A broker for tests: real, ready in a fraction of a second, and able to fail as brokers do.

    def test_orders(kafka):  # a pytest fixture: no import, no conftest.py
        topic = kafka.topic()
        lost = kafka.lose_answer(Api.PRODUCE, topic=topic)
        ...  # the application, with kafka.bootstrap_servers
        kafka.assert_once(topic, [b"first", b"second"])

Without pytest, `with start_broker() as broker:` does the same; from other languages, `magnetar
testing serve`. docs/testing_your_application.md is the cookbook.

TLS, users and ACLs are an argument each:

    acls = [allow("ada", "READ", "WRITE", topic="orders"), allow("ada", "READ", group="billing")]
    with start_broker(tls=True, users={"ada": "secret"}, acls=acls) as broker:
        Producer(broker.confluent_settings("ada"))

A cluster of three nodes, whose faults count over all of them: `start_broker(workers=3)`.

Certificates need `pip install magnetar[security]`.

This package knows a broker by its process, its protocol and its door (`magnetar.faults.door`). Its
names are imported when they are used: pytest loads the plugin in every project where magnetar is
installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.testing.access import allow, deny
    from magnetar.testing.api import Api
    from magnetar.testing.broker import Broker
    from magnetar.testing.broker import Broker as start_broker
    from magnetar.testing.faults import Fault, FaultNeverFired
    from magnetar.testing.link import BrokerGone
    from magnetar.testing.process import BrokerProcess, NotReady
    from magnetar.testing.records import Record
    from magnetar.testing.requests import Request, Requests
    from magnetar.testing.snapshots import Snapshot, SnapshotRefused

#: Where each name is. `start_broker` is the class: `with start_broker() as broker`.
_PLACES = {
    "Api": "api:Api",
    "Broker": "broker:Broker",
    "BrokerGone": "link:BrokerGone",
    "BrokerProcess": "process:BrokerProcess",
    "Fault": "faults:Fault",
    "FaultNeverFired": "faults:FaultNeverFired",
    "NotReady": "process:NotReady",
    "Record": "records:Record",
    "Request": "requests:Request",
    "Requests": "requests:Requests",
    "Snapshot": "snapshots:Snapshot",
    "SnapshotRefused": "snapshots:SnapshotRefused",
    "allow": "access:allow",
    "deny": "access:deny",
    "start_broker": "broker:Broker",
}

__all__ = [
    "Api",
    "Broker",
    "BrokerGone",
    "BrokerProcess",
    "Fault",
    "FaultNeverFired",
    "NotReady",
    "Record",
    "Request",
    "Requests",
    "Snapshot",
    "SnapshotRefused",
    "allow",
    "deny",
    "start_broker",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found
