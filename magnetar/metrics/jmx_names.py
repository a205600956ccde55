"""The names that Strimzi's rules make of Kafka's JMX beans, for dashboards made for those.

`metrics.names=jmx`. Rule files differ, so these are not told by default. Where magnetar counts in
another way, the help says so. Source: strimzi-kafka-operator, examples/metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from magnetar.metrics.families import COUNTER, GAUGE, SERIES_MAX, Family
from magnetar.metrics.replica_counts import Replication, replication
from magnetar.metrics.samples import Samples, labelled
from magnetar.runtime.services import Services
from magnetar.server.latency import SUM_NS, quantile_seconds
from magnetar.server.listening import Server
from wire.api import API_NAMES

NAME = "jmx"
_PRODUCE, _FETCH = 0, 1
_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999)
_TOPICS = "kafka_server_brokertopicmetrics_"
_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_REQUESTS = "kafka_network_requestmetrics_"

FAMILIES = {
    family.name: family
    for family in (
        Family(
            f"{_TOPICS}messagesin_total",
            COUNTER,
            "The ends of a topic's partitions, summed: markers of transactions count too.",
            ("topic",),
        ),
        Family(f"{_TOPICS}bytesin_total", COUNTER, "Bytes that clients have sent, in any request."),
        Family(f"{_TOPICS}bytesout_total", COUNTER, "Bytes that were answered to clients."),
        Family(f"{_TOPICS}totalproducerequests_total", COUNTER, "Produce requests."),
        Family(f"{_TOPICS}totalfetchrequests_total", COUNTER, "Fetch requests."),
        Family(
            f"{_TOPICS}failedproducerequests_total",
            COUNTER,
            "Partitions of Produce requests that were refused.",
        ),
        Family(
            f"{_TOPICS}failedfetchrequests_total",
            COUNTER,
            "Partitions of Fetch requests that were refused.",
        ),
        Family(f"{_REPLICAS}partitioncount", GAUGE, "Partitions of which the node has a replica."),
        Family(f"{_REPLICAS}leadercount", GAUGE, "Partitions that the node leads."),
        Family(
            f"{_REPLICAS}underreplicatedpartitions",
            GAUGE,
            "Partitions led here of which a replica does not live: 0 but in a cluster.",
        ),
        Family(
            f"{_CONTROLLER}activecontrollercount", GAUGE, "1 of one node, 0 of each other node."
        ),
        Family(f"{_CONTROLLER}offlinepartitionscount", GAUGE, "0: a failed disk ends the broker."),
        Family(f"{_REQUESTS}requests_total", COUNTER, "Requests by API.", ("request",)),
        Family(
            f"{_REQUESTS}totaltimems",
            GAUGE,
            "Quantiles of the time of requests since the start, in ms; see magnetar_request_seconds"
            " for a rate.",
            ("request", "quantile"),
        ),
        Family(f"{_REQUESTS}errors_total", COUNTER, "Refusals.", ("request", "error")),
    )
}


async def gather(services: Services, server: Server) -> list[Metric]:
    """Return the families."""
    return [*_families(services, server, await replication(services.topics))]


def _families(services: Services, server: Server, replicas: Replication) -> Iterator[Metric]:
    dispatcher, refusals = server.dispatcher, services.refusals
    topics = services.topics.all()
    ends = [
        ((topic.name,), sum(log.high_watermark for log in topic.local))
        for topic in topics[:SERIES_MAX]
    ]
    yield _family(f"{_TOPICS}messagesin_total", ends)
    nodes = services.nodes
    counts = dispatcher.request_counts
    for name, value in (
        (f"{_TOPICS}bytesin_total", server.received_bytes),
        (f"{_TOPICS}bytesout_total", server.sent_bytes),
        (f"{_TOPICS}totalproducerequests_total", counts[_PRODUCE]),
        (f"{_TOPICS}totalfetchrequests_total", counts[_FETCH]),
        (f"{_TOPICS}failedproducerequests_total", refusals.of_api(_PRODUCE)),
        (f"{_TOPICS}failedfetchrequests_total", refusals.of_api(_FETCH)),
        (f"{_REPLICAS}partitioncount", replicas.held),
        (f"{_REPLICAS}leadercount", sum(len(topic.local) for topic in topics)),
        (f"{_REPLICAS}underreplicatedpartitions", replicas.under_replicated),
        (f"{_CONTROLLER}activecontrollercount", int(nodes.controller_id == nodes.own_id)),
        (f"{_CONTROLLER}offlinepartitionscount", 0),
    ):
        yield _family(name, [((), value)])
    named = [((API_NAMES[key],), count) for key, count in counts.items() if count]
    yield _family(f"{_REQUESTS}requests_total", named)
    yield _family(
        f"{_REQUESTS}totaltimems",
        [
            ((API_NAMES[key], str(share)), quantile_seconds(durations, share) * 1000)
            for key, durations in dispatcher.durations.items()
            if durations[SUM_NS]
            for share in _QUANTILES
        ],
    )
    errors = refusals.counts.items()
    yield _family(
        f"{_REQUESTS}errors_total",
        [((API_NAMES[key], code.name), count) for (key, code), count in errors],
    )


def _family(name: str, samples: Samples) -> Metric:
    return labelled(name, samples, FAMILIES)
