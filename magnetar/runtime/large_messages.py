"""The thread for large messages, which take milliseconds to decode, refuse, encode, or free.

There is one thread, so that one large message at a time takes memory and CPU time.
"""

from __future__ import annotations

from logstore.disk.pools import Pool

#: Messages with more elements are decoded and encoded there: about 3 ms of work. Each KB of a long
#: string counts as one.
ELEMENTS_AT_ONCE = 2048
LARGE_MESSAGES = Pool("large-messages", 1)
