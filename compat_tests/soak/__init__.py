"""Transactions for minutes on end, while the broker and its clients are killed and stopped.

Twelve writers, some sharing a transactional id, and four groups that copy what was committed. Each
client tells what it did before and after it did it; `checker` compares these histories with what a
read_committed reader finds.

    writers  --transactions-->  entries (6 partitions)  --4 groups, exactly once-->  copies-N (2)
"""
