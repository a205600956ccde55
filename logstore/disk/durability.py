"""What an acknowledged append has survived, by configuration (`durability=`)."""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    """The promise that stands behind `durable_end_offset`, hence behind visibility and answers."""

    #: On the disk: survives power loss. The default.
    FSYNC = "fsync"
    #: In the page cache: survives the end of the process, promises nothing after power loss.
    PAGE_CACHE = "page-cache"
    #: In this process: promises nothing after it.
    MEMORY = "memory"
