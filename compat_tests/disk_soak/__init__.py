"""Every client at once on a small disk that fills, while the broker is killed.

Beside the transactions of `compat_tests.soak` and the groups of `compat_tests.churn`, writers of
each library fill the disk through the topic `bulk`, a partition each; readers of both isolation
levels follow; an administrator makes, trims and deletes topics. When the disk is full, retention is
told to make room, and the writers go on.

    idempotent writers, transactional writer --> bulk (a partition each) --> four readers
"""
