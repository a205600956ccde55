"""What is wrong in a data directory, and what mends it: the words of `magnetar check` and `repair`.

A finding names its remedy, and the remedy and the path are all that a repair needs to know. So a
check says what a repair would do, and a repair does nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    """How bad a finding is."""

    #: Nothing is lost, and the next start does what is needed.
    NOTE = "note"
    #: Nothing is lost: the file can be made anew from the log.
    WARNING = "warning"
    #: Records or settings are lost, or would be.
    ERROR = "error"


class Remedy(Enum):
    """What a repair does about a finding. Nothing is deleted: what goes is set aside."""

    NONE = "nothing: the next start does what is needed"
    BY_HAND = "nothing: it takes a person, as the finding says"
    KEEP_WHOLE = "set the segment aside, and go on with its whole batches"
    INDEX = "set the index aside, and make it anew from the log"
    ABORTED = "set the index aside, and make it anew from the log's markers"
    EPOCHS = "set the checkpoint aside, and make it anew from the log"
    DROP = "set the file aside: a start does without it"
    METADATA = "set the file aside, and write the topic id that the catalog has"
    OFFSETS = "set the checkpoint aside, and write one that agrees with the logs"
    STRAY = "set the directory aside: it is of no partition that the catalog knows"
    TWIN = "set the directory aside: the partition lies where it belongs, too"
    JOURNAL = "set a copy of the journal aside, and write its whole records to their files"
    CATALOG = (
        "set the catalog aside: the next start takes the topics from their directories, without"
        " their settings, and without users and ACLs"
    )


class Finding(NamedTuple):
    """One thing that is wrong."""

    severity: Severity
    #: Below the data directory.
    path: str
    problem: str
    remedy: Remedy
