"""The transaction coordinator's rules, all of them pure.

`metadata` is the state of one transactional id, `epochs` says who may act as its producer, `shard`
has all ids of a partition, `records` their bytes in `__transaction_state`. `init_producer_id`,
`add_partitions` (with op before data), `end_txn` and `expire` decide transitions; `joint` comes one
step after them, for families. `commit_plan` says what a decision owes, and in which order it is
carried out; `healing` what becomes of data that no coordinator will end; `listing` what
ListTransactions finds. `remembered_holds` and `coordinator_fences` are what the node of a partition
knows of transactions that another node coordinates.
"""
