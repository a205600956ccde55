"""Every client at once on a small disk that fills, while the broker is killed.

The transactions of `compat_tests.soak` and the groups of `compat_tests.churn` run at the same time.
Writers of each library fill the disk through the topic `bulk`, a partition each. Readers of both
isolation levels follow. An administrator makes, trims and deletes topics. When the disk is full,
retention is set to make room, and the writers go on.

    idempotent writers, transactional writer --> bulk (a partition each) --> four readers
"""
