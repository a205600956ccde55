"""What stops a write; every message is for the person who runs the query."""

from __future__ import annotations


class SinkError(Exception):
    """Nothing of the batch is visible, or all of it was visible before."""


class BadOptions(SinkError):
    """The sink cannot work with these options or columns."""


class OtherQuery(SinkError):
    """The query id belongs to another query, or this query has gone back in time."""


class VotesDiffer(SinkError):
    """The votes are not those of the tasks that Spark counts. The batch was aborted."""


class TooManyTasks(SinkError):
    """A batch has more tasks with rows than a broker takes. Nothing of it was written."""
