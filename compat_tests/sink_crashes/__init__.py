"""The crash matrix of the exactly-once sink.

Spark's part is played here: each call of the sink is a process of its own, as in Spark, and whoever
runs can be killed at any step of the protocol, the broker too. `nursery` makes the processes,
`roles` is what they do, `query` is Spark's driver, `run` disturbs and judges.
"""
