"""The consumer group protocol (KIP-848): the coordinator assigns, members reconcile at their pace.

`group` is what the log says of a group: a fold over its records. `heartbeat` and `membership`
decide which records a request brings about, with `subscription` (what members read), `assignors`
and `assignment` (who shall read what, and who does by now). `soft_state` is what the log does not
hold: deadlines above all. `classic_members` serves members of the classic protocol in such a group;
`migration` turns groups of one kind into the other. Nothing here knows offsets, a clock or a log.
"""
