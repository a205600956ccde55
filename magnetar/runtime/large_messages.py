"""The thread for what takes milliseconds because a message is large: to decode it, to encode it, to
refuse each thing that it names, to free it. One thread: one large message at a time takes memory
and CPU time."""

from __future__ import annotations

from logstore.disk.pools import Pool

#: Messages with more elements are decoded and encoded there: about 3 ms of work.
ELEMENTS_AT_ONCE = 2048
LARGE_MESSAGES = Pool("large-messages", 1)
