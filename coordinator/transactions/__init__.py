"""The transaction coordinator's rules: one transition family per module, all of them pure.

`metadata` is the state, `records` its bytes in `__transaction_state`; `init_producer_id`,
`add_partitions`, `end_txn`, `expire` and `complete` decide transitions; `work` says what the world
still owes a state; `checks` guards data against transactions that do not hold it.
"""
