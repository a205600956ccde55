"""The thread for what takes milliseconds because a message is large: to decode it, to encode it, to
refuse each thing that it names, to free it. One thread: one large message at a time takes memory
and CPU time."""

from __future__ import annotations

from logstore.disk.pools import Pool

LARGE_MESSAGES = Pool("large-messages", 1)
