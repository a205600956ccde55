"""Joint transactions: how long the parent's commit takes, by how many votes it decides.

Of magnetar alone: on Apache Kafka the commit of `PARENT~>CHILD` is a commit like any other.
"""

from __future__ import annotations

from statistics import median

from benchmarks.frames import Frames, add_partitions, end, new_producers, produce_request, produced
from benchmarks.table import Row
from compat_tests.admin import create_topic
from compat_tests.brokers import Broker
from wire.messages.produce import ProduceResponse

TOPIC = "joint"
PARTITIONS = 4
_VALUE = b"x" * 100


def measure(broker: Broker, *, votes: int, samples: int) -> dict[Row, float]:
    """EndTxn of a parent with 8 and with `votes` votes, each child with data in one partition and
    holding four: until its answer, when everything is visible."""
    if broker.kind == "kafka":
        return {}
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    found = {}
    with Frames(broker.bootstrap) as connection:
        for count in (8, votes):
            took = [_commit(connection, f"joint-{count}-{n}", count) for n in range(samples)]
            row = Row(f"EndTxn of a parent with {count:,} votes, p50", "ms", False)
            found[row] = median(took)
    return found


def _commit(connection: Frames, parent: str, count: int) -> float:
    """Return how long the decision over `count` votes took, in ms."""
    names = [f"{parent}~>{number}" for number in range(count)]
    for child in new_producers([connection], names):
        add_partitions(connection, child, TOPIC, range(PARTITIONS))
        answer = connection.call(produce_request(TOPIC, child, 0, [_VALUE]), ProduceResponse, 11)
        assert produced(answer) == 0, answer
        end(connection, child, commit=True)
    (driver,) = new_producers([connection], [parent])
    add_partitions(connection, driver, TOPIC, [0])
    return end(connection, driver, commit=True)
