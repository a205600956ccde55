"""What a partition's directory is called: the topic's name, a dash, the partition's number."""

from __future__ import annotations


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def split_partition_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition of the directory of that name; None: it is no partition's."""
    topic, _, number = name.rpartition("-")
    if not (topic and number.isascii() and number.isdigit()):
        return None
    partition = int(number)
    # One name for a partition: its number has no zeros before it.
    return (topic, partition) if partition_name(topic, partition) == name else None
