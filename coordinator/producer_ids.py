"""The numbers of producer ids: how many a block has, and below which number brokers give them out.

The catalog persists a block before its first id is used (`magnetar.runtime.producer_ids`). A crash
loses the rest of a block and never repeats an id. Source: KIP-730.
"""

from __future__ import annotations

BLOCK_SIZE = 1000
#: No broker ever gives out so many ids. An id above this that is found in a log was made up by a
#: producer, which brokers believe. It need not be kept from being given out.
PRODUCER_IDS_END = 2**62
