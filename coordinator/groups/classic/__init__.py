"""The classic group protocol as a state machine without I/O and without a clock.

`group` is what a group is; `joining`, `rebalance` (with SyncGroup), `heartbeats` and `leaving` are
what can happen to it. Every input carries `now_ms`; joins and syncs carry a token, which comes back
with its answer in an `Outcome`, exactly once. Sources: KIP-62, KIP-345, KIP-394, KIP-559, KIP-814.
"""
