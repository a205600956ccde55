"""The names that a topic may have. Source: Kafka's org.apache.kafka.common.internals.Topic."""

from __future__ import annotations

from wire.error_code import ErrorCode
from wire.errors import KafkaError

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
#: The name that Kafka keeps for the log of its quorum; DescribeQuorum knows it.
CLUSTER_METADATA = "__cluster_metadata"
#: The directory of that log, which a directory of Kafka's has.
METADATA_DIRECTORY = f"{CLUSTER_METADATA}-0"
#: Topics that the coordinators alone write to.
INTERNAL = frozenset({TRANSACTION_STATE, CONSUMER_OFFSETS})

NAME_LENGTH_MAX = 249
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` may be a topic's: `[a-zA-Z0-9._-]{1,249}`."""
    if not name:
        reason = "is empty"
    elif name in (".", ".."):
        reason = "is the name of a directory"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"has {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL.issuperset(name):
        reason = "may have only ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    shown = name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX] + "..."
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name '{shown}' {reason}.")


class TakenNames:
    """The names that are taken, by what they are in the names of Kafka's metrics.

    There `.` and `_` are one character. A look at each name for every topic that is made would take
    as long as there are topics.
    """

    def __init__(self) -> None:
        #: By folded name: the names, of which only an adopted directory may bring several.
        self._names: dict[str, list[str]] = {}

    def add(self, name: str) -> None:
        """Take a name, unless it is taken."""
        names = self._names.setdefault(_folded(name), [])
        if name not in names:
            names.append(name)

    def discard(self, name: str) -> None:
        """Give a name back, if it is taken."""
        names = self._names.get(_folded(name), [])
        if name in names:
            names.remove(name)
        if not names:
            self._names.pop(_folded(name), None)

    def check_collision(self, name: str) -> None:
        """Raise INVALID_TOPIC_EXCEPTION where `name` differs from another only in `.` and `_`."""
        for other in self._names.get(_folded(name), ()):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {other}",
            )


def _folded(name: str) -> str:
    return name.replace(".", "_")
