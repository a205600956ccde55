"""Apache Kafka 4.4.0 as the reference: its jars, its command line tools, and a single-node KRaft
broker. Beside them the Java client and the Connect of the release before, 4.3.1.

Nothing of magnetar is imported here: the reference must stand when magnetar does not. Needs Java
17 or newer and, the first time, Maven.
"""

from tools.reference_kafka.broker import ReferenceKafka
from tools.reference_kafka.jars import (
    OLDER,
    REFERENCE,
    VERSION,
    Jars,
    ReferenceUnavailable,
    fetch,
    java_command,
)

__all__ = [
    "OLDER",
    "REFERENCE",
    "VERSION",
    "Jars",
    "ReferenceKafka",
    "ReferenceUnavailable",
    "fetch",
    "java_command",
]
