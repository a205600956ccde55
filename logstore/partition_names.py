"""What a partition's directory is called: the topic's name, a dash, the partition's number."""

from __future__ import annotations


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def split_partition_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition of the directory of that name; None: it is no partition's."""
    topic, dash, number = name.rpartition("-")
    return (topic, int(number)) if dash and topic and number.isdigit() else None
