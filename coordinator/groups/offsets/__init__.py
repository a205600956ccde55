"""What groups have committed: offsets, and the pending acks of open transactions.

Nothing here knows members or generations. Sources: KIP-98, KIP-447; pending acks are Pulsar's name
for offsets that a transaction will commit.
"""
