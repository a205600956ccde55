"""Consumer groups: who is a member, who reads what, and how far each group has read.

`classic` is the membership protocol of KIP-62, `offsets` what groups commit. The two know nothing
of each other; `shard` puts them over one log, a partition of `__consumer_offsets`.
"""
