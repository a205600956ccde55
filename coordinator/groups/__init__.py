"""Consumer groups: their members, what each member reads, and how far each group has read.

`classic` is the membership protocol of KIP-62, `consumer` that of KIP-848, `offsets` what groups of
both commit. Offsets know no members. `shard` puts them over one log, a partition of
`__consumer_offsets`; `committing` and `deletion` are the rules for both together.
"""
