"""Apache Kafka 4.3.1 as the reference: its jars, its command line tools, and a single-node KRaft
broker. Beside them the jars of the newest Java client, 4.4.0.

Nothing of magnetar is imported here: the reference must stand when magnetar does not. Needs Java
17 or newer and, the first time, Maven.
"""

from tools.reference_kafka.broker import ReferenceKafka
from tools.reference_kafka.jars import (
    CLIENTS,
    REFERENCE,
    VERSION,
    Jars,
    ReferenceUnavailable,
    fetch,
    java_command,
)

__all__ = [
    "CLIENTS",
    "REFERENCE",
    "VERSION",
    "Jars",
    "ReferenceKafka",
    "ReferenceUnavailable",
    "fetch",
    "java_command",
]
