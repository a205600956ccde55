"""EndTxnMarker: versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, int32


class EndTxnMarker(Message, versions="0"):
    coordinator_epoch: int32 = 0
