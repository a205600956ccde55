"""What stops a write, in words for who runs the query."""

from __future__ import annotations


class SinkError(Exception):
    """Nothing of the batch is visible, or all of it was before; the message says what to do."""


class BadOptions(SinkError):
    """The options, or the columns, are not what the sink can work with."""


class OtherQuery(SinkError):
    """The query id is another's, or this query has gone back in time."""


class VotesDiffer(SinkError):
    """What voted is not what Spark counts as written: the batch was aborted."""
