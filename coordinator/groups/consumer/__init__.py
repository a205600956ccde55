"""The consumer group protocol (KIP-848): the coordinator assigns, members reconcile at their pace.

`group` is what the log says of a group: a fold over its records. `heartbeat` and `leaving` decide
which records a request brings about, with what is beside them: `membership` (who may speak),
`target` and the assignors (who shall read what), `reconciliation` (who reads what by now).
`classic_members` serves members of the classic protocol in such a group; `upgrade` and `downgrade`
turn groups of one kind into the other. Nothing here knows offsets, a clock or a log.
"""
